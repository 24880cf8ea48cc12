//! The patterns and rules that the CRD schemas of several kinds share.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::requirement::{NodeSelectorRequirement, NodeSelectorRequirementWithMinValues};

/// A qualified name: an optional DNS prefix with a slash, then a name.
pub const QUALIFIED_NAME: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
pub const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
pub const DURATION: &str = r"^([0-9]+(s|m|h))+$";
pub const DURATION_OR_NEVER: &str = r"^(([0-9]+(s|m|h))+|Never)$";
/// Hours and minutes only; the `0s` tail is what Go appends when it writes the value back.
pub const BUDGET_DURATION: &str = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$";
pub const BUDGET_NODES: &str = r"^((100|[0-9]{1,2})%|[0-9]+)$";
pub const CRON: &str = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$";
pub const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
pub const NO_SLASH: &str = r"^[^/]*$";
pub const PRICE: &str = r"^\d+(\.\d+)?$";
pub const PRICE_ADJUSTMENT: &str = r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$";

/// One `x-kubernetes-validations` entry.
pub fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

/// A list of taints; the wire type is Kubernetes' own.
pub fn taints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "atomic",
        "items": {
            "description": "A taint of the node: pods that do not tolerate it stay away or are evicted.",
            "type": "object",
            "required": ["effect", "key"],
            "properties": {
                "key": {
                    "description": "Name of the taint.",
                    "type": "string", "minLength": 1, "pattern": QUALIFIED_NAME,
                },
                "value": {
                    "description": "Value of the taint, if it has one.",
                    "type": "string", "pattern": QUALIFIED_NAME,
                },
                "effect": {
                    "description": "What happens to pods that do not tolerate the taint.",
                    "type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
                },
                "timeAdded": {
                    "description": "When the taint was added.",
                    "type": "string", "format": "date-time",
                },
            },
        },
    })
}

/// Requirements of a NodePool's template.
pub fn node_pool_requirements(generator: &mut SchemaGenerator) -> Schema {
    requirements::<NodeSelectorRequirementWithMinValues>(
        generator,
        &[MIN_VALUES_RULE],
        &[(
            "self != 'karpenter.sh/nodepool'",
            "label karpenter.sh/nodepool is set by Karpenter; remove it",
        )],
    )
}

/// Requirements of a NodeClaim, which do name the NodePool that it belongs to.
pub fn node_claim_requirements(generator: &mut SchemaGenerator) -> Schema {
    requirements::<NodeSelectorRequirementWithMinValues>(generator, &[MIN_VALUES_RULE], &[])
}

/// Requirements of a NodeOverlay, which may select by NodePool.
pub fn node_overlay_requirements(generator: &mut SchemaGenerator) -> Schema {
    let not_in = (
        "self.all(x, x.operator != 'NotIn' || x.values.size() > 0)",
        "operator NotIn needs at least one value",
    );
    requirements::<NodeSelectorRequirement>(generator, &[not_in], &[])
}

const MIN_VALUES_RULE: (&str, &str) = (
    "self.all(x, x.operator != 'In' || !has(x.minValues) || x.values.size() >= x.minValues)",
    "with minValues, operator In needs at least that many values",
);

fn requirements<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    list_rules: &[(&str, &str)],
    key_rules: &[(&str, &str)],
) -> Schema {
    let mut item = T::json_schema(generator).to_value();
    let common_key_rules = [
        (
            "self in ['karpenter.sh/capacity-type', 'karpenter.sh/nodepool'] || !self.find('^[^/]+').endsWith('karpenter.sh')",
            "label domain karpenter.sh is restricted; use a domain of your own",
        ),
        (
            "self != 'kubernetes.io/hostname'",
            "label kubernetes.io/hostname is set by the node; remove it",
        ),
    ];
    item["properties"]["key"]["x-kubernetes-validations"] = common_key_rules
        .iter()
        .chain(key_rules)
        .map(|(text, message)| rule(text, message))
        .collect();
    // Upstream put these two on the list and not on its items, where they check nothing; kept so that the schemas agree.
    item["properties"]["values"] = json!({
        "description": item["properties"]["values"]["description"],
        "type": "array",
        "items": { "type": "string" },
        "maxLength": 63,
        "pattern": LABEL_VALUE,
        "x-kubernetes-list-type": "atomic",
    });
    let common_list_rules = [
        (
            "self.all(x, x.operator != 'In' || x.values.size() > 0)",
            "operator In needs at least one value",
        ),
        (
            "self.all(x, !(x.operator in ['Gt', 'Lt', 'Gte', 'Lte']) || (x.values.size() == 1 && int(x.values[0]) >= 0))",
            "operators Gt, Lt, Gte and Lte need exactly one whole number that is not negative",
        ),
    ];
    let rules: Value = common_list_rules
        .iter()
        .chain(list_rules)
        .map(|(text, message)| rule(text, message))
        .collect();
    json_schema!({
        "type": "array",
        "maxItems": 100,
        "items": item,
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": rules,
    })
}

/// Conditions as Kubernetes demands them today.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    let reason = json!({
        "description": "Why the condition has its status, as one CamelCase word.",
        "type": "string",
        "minLength": 1,
        "maxLength": 1024,
        "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
    });
    condition_list(reason, &["lastTransitionTime", "message", "reason", "status", "type"])
}

/// Conditions of NodeClaims: objects that older versions wrote without a reason must stay readable.
pub fn lenient_conditions(_: &mut SchemaGenerator) -> Schema {
    let reason = json!({
        "description": "Why the condition has its status, as one CamelCase word; may be empty.",
        "type": "string",
        "maxLength": 1024,
        "pattern": "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$",
    });
    condition_list(reason, &["lastTransitionTime", "status", "type"])
}

fn condition_list(reason: Value, required: &[&str]) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "One fact about the object.",
            "type": "object",
            "required": required,
            "properties": {
                "type": {
                    "description": "What the condition is about.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {
                    "description": "Whether it holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "The generation of the object that the condition was judged on.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "reason": reason,
                "message": {
                    "description": "The same for people.",
                    "type": "string",
                    "maxLength": 32768,
                },
            },
        },
    })
}

pub fn date_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// What to write instead, for an error message that quotes one of our patterns.
pub fn hint(message: &str) -> Option<&'static str> {
    let hints = [
        (QUALIFIED_NAME, "use a name such as team or example.com/team"),
        (LABEL_VALUE, "use letters, digits, \"-\", \"_\" and \".\""),
        (DURATION, "use a duration such as 30s, 5m or 1h30m"),
        (DURATION_OR_NEVER, "use a duration such as 30s, 5m or 1h30m, or Never"),
        (BUDGET_DURATION, "use hours and minutes such as 30m, 8h or 2h20m"),
        (BUDGET_NODES, "use a count such as 5, or a percentage from 0% to 100%"),
        (
            CRON,
            "use five cron fields such as 0 9 * * mon-fri, or a macro such as @daily",
        ),
        (QUANTITY, "use a quantity such as 500m, 2 or 1.5Gi"),
        (NO_SLASH, "use the API group alone, such as karpenter.kwok.sh"),
        (PRICE, "use an unsigned price such as 0.05"),
        (
            PRICE_ADJUSTMENT,
            "use a signed change such as -0.05, +10% or -50%, down to -100%",
        ),
    ];
    // Several patterns contain others; the longest that is quoted is the one meant.
    let quoted = hints.into_iter().filter(|(pattern, _)| message.contains(pattern));
    quoted.max_by_key(|(pattern, _)| pattern.len()).map(|(_, hint)| hint)
}
