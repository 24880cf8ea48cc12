use serde_json::{Value, json};

use super::{CompiledSchema, Definition, FieldErrorReason, JsonPath};

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).expect("test YAML parses")
}

/// A schema with one field per keyword, under `spec`.
fn compile(spec: &str) -> CompiledSchema {
    let document = json!({"type": "object", "properties": {"spec": yaml(spec), "status": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    CompiledSchema::compile(&document, "schema").expect("the test schema compiles")
}

/// Admits `object` and returns what came out, or the errors one per line.
fn admit(spec: &str, object: &str) -> Result<Value, String> {
    update(spec, object, None)
}

fn update(spec: &str, object: &str, old: Option<&str>) -> Result<Value, String> {
    let schema = compile(spec);
    let mut new = json!({"spec": yaml(object)});
    let old = old.map(|old| json!({"spec": yaml(old)}));
    match schema.admit(&mut new, old.as_ref()) {
        Ok(_) => Ok(new["spec"].clone()),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

fn error(spec: &str, object: &str) -> String {
    admit(spec, object).expect_err("the object is invalid")
}

const NOT_CHECKED: &str = "<nil>: Invalid value: null: some validation rules were not checked because the object was \
                           invalid; correct the existing errors to complete validation";

#[test]
fn a_defaulted_parent_gets_its_childrens_defaults() {
    let schema = "
        type: object
        properties:
          disruption:
            type: object
            default: {consolidateAfter: 0s}
            properties:
              consolidateAfter: {type: string}
              consolidationPolicy: {type: string, default: WhenEmptyOrUnderutilized}
              budgets: {type: array, default: [{nodes: 10%}], items: {type: object, properties: {nodes: {type: string}}}}";
    assert_eq!(
        admit(schema, "{}").expect("valid"),
        json!({"disruption": {"consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "budgets": [{"nodes": "10%"}]}})
    );
    assert_eq!(
        admit(schema, "{disruption: {budgets: []}}").expect("valid")["disruption"]["budgets"],
        json!([])
    );
}

#[test]
fn null_of_a_non_nullable_field_is_dropped() {
    let schema = "{type: object, properties: {weight: {type: integer}, note: {type: string, nullable: true}}}";
    assert_eq!(
        admit(schema, "{weight: null, note: null}").expect("valid"),
        json!({"note": null})
    );
}

#[test]
fn unknown_fields_are_pruned_and_named() {
    let schema = compile(
        "{type: object, properties: {a: {type: string}, list: {type: array, items: {type: object, properties: {k: {type: string}}}},
          free: {type: object, x-kubernetes-preserve-unknown-fields: true}, labels: {type: object, additionalProperties: {type: string}}}}",
    );
    let mut object = json!({"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "n"}, "bogus": 1,
        "spec": {"a": "x", "foo": 1, "list": [{"k": "v", "z": 1}], "free": {"any": {"thing": 1}}, "labels": {"l": "v"}}});
    let admitted = schema.admit(&mut object, None).expect("valid");
    assert_eq!(admitted.unknown_fields, ["bogus", "spec.foo", "spec.list[0].z"]);
    assert_eq!(
        object["spec"],
        json!({"a": "x", "list": [{"k": "v"}], "free": {"any": {"thing": 1}}, "labels": {"l": "v"}})
    );
    assert_eq!(object["metadata"]["name"], "n");
}

#[test]
fn a_missing_required_field_is_reported_at_its_own_path() {
    let schema = "{type: object, required: [x], properties: {x: {type: string}}}";
    assert_eq!(error(schema, "{}"), format!("spec.x: Required value\n{NOT_CHECKED}"));
}

#[test]
fn a_wrong_type_names_both_types() {
    let schema = "{type: object, properties: {weight: {type: integer}}}";
    assert_eq!(
        error(schema, "{weight: heavy}"),
        format!(
            "spec.weight: Invalid value: \"string\": spec.weight in body must be of type integer: \"string\"\n{NOT_CHECKED}"
        )
    );
}

#[test]
fn an_enum_error_lists_what_is_supported_and_hides_cel() {
    let schema = "
        type: object
        properties: {policy: {type: string, enum: [A, B]}}
        x-kubernetes-validations: [{rule: 'false', message: never}]";
    assert_eq!(
        error(schema, "{policy: X}"),
        format!("spec.policy: Unsupported value: \"X\": supported values: \"A\", \"B\"\n{NOT_CHECKED}")
    );
}

#[test]
fn bounds_do_not_hide_cel() {
    let schema = "
        type: object
        properties: {weight: {type: integer, minimum: 1, maximum: 100}}
        x-kubernetes-validations: [{rule: 'false', message: never}]";
    assert_eq!(
        error(schema, "{weight: 0}"),
        "spec.weight: Invalid value: 0: spec.weight in body should be greater than or equal to 1\n\
         spec: Invalid value: never"
    );
    assert_eq!(
        error(schema, "{weight: 101}").lines().next(),
        Some("spec.weight: Invalid value: 101: spec.weight in body should be less than or equal to 100")
    );
}

#[test]
fn sizes_have_their_own_reasons() {
    let first = |schema: &str, object: &str| {
        let mut new = json!({"spec": yaml(object)});
        let errors = compile(schema).admit(&mut new, None).expect_err("invalid");
        (errors[0].reason, errors[0].to_string())
    };
    assert_eq!(
        first(
            "{type: object, properties: {x: {type: string, maxLength: 4}}}",
            "{x: hello}"
        ),
        (
            FieldErrorReason::TooLong,
            "spec.x: Too long: may not be more than 4 bytes".to_owned()
        )
    );
    assert_eq!(
        first(
            "{type: object, properties: {x: {type: array, maxItems: 1, items: {type: string}}}}",
            "{x: [a, b]}"
        ),
        (
            FieldErrorReason::TooMany,
            "spec.x: Too many: 2: must have at most 1 items".to_owned()
        )
    );
    assert_eq!(
        first(
            "{type: object, properties: {x: {type: object, maxProperties: 1, additionalProperties: {type: string}}}}",
            "{x: {a: a, b: b}}"
        ),
        (
            FieldErrorReason::TooMany,
            "spec.x: Too many: 2: must have at most 1 items".to_owned()
        )
    );
    assert_eq!(
        first(
            "{type: object, properties: {x: {type: string, minLength: 2}}}",
            "{x: a}"
        ),
        (
            FieldErrorReason::Invalid,
            "spec.x: Invalid value: \"a\": spec.x in body should be at least 2 chars long".to_owned()
        )
    );
    assert_eq!(
        first(
            "{type: object, properties: {x: {type: array, minItems: 1, items: {type: string}}}}",
            "{x: []}"
        )
        .1,
        "spec.x: Invalid value: 0: spec.x in body should have at least 1 items"
    );
}

#[test]
fn patterns_and_formats_quote_the_value() {
    assert_eq!(
        error(
            "{type: object, properties: {x: {type: string, pattern: '^\\d+h$'}}}",
            "{x: 1 hour}"
        ),
        "spec.x: Invalid value: \"1 hour\": spec.x in body should match '^\\d+h$'"
    );
    assert_eq!(
        error(
            "{type: object, properties: {t: {type: string, format: date-time}}}",
            "{t: nope}"
        )
        .lines()
        .next(),
        Some("spec.t: Invalid value: \"nope\": spec.t in body must be of type date-time: \"nope\"")
    );
    let schema = "{type: object, properties: {d: {type: string, format: duration}}}";
    for good in ["1h30m", "10s", "1.5h", "-3ms", "0"] {
        assert!(admit(schema, &format!("{{d: '{good}'}}")).is_ok(), "{good}");
    }
    assert!(admit(schema, "{d: soon}").is_err());
}

#[test]
fn an_int_or_string_refuses_a_float() {
    let schema = "
        type: object
        properties:
          limits:
            type: object
            additionalProperties: {anyOf: [{type: integer}, {type: string}], x-kubernetes-int-or-string: true}";
    assert_eq!(
        admit(schema, "{limits: {cpu: 10, memory: 1Gi}}").expect("valid")["limits"]["cpu"],
        json!(10)
    );
    let message = error(schema, "{limits: {cpu: 1.5}}");
    assert!(
        message.contains("<nil>: Invalid value: \"\": \"spec.limits.cpu\" must validate at least one schema (anyOf)"),
        "{message}"
    );
}

#[test]
fn duplicates_in_sets_and_maps_are_reported_at_the_later_index() {
    let schema = "
        type: object
        properties:
          reasons: {type: array, x-kubernetes-list-type: set, items: {type: string}}
          conditions:
            type: array
            x-kubernetes-list-type: map
            x-kubernetes-list-map-keys: [type]
            items: {type: object, properties: {type: {type: string}, status: {type: string}}}";
    assert_eq!(
        error(schema, "{reasons: [Empty, Drifted, Empty]}"),
        "spec.reasons[2]: Duplicate value: \"Empty\""
    );
    assert_eq!(
        error(
            schema,
            "{conditions: [{type: Ready, status: 'True'}, {type: Ready, status: 'False'}]}"
        ),
        "spec.conditions[1]: Duplicate value: {\"type\":\"Ready\"}"
    );
}

const REQUIREMENTS: &str = "
    type: object
    properties:
      requirements:
        type: array
        items:
          type: object
          properties:
            key:
              type: string
              x-kubernetes-validations:
                - {rule: 'self != \"kubernetes.io/hostname\"', message: 'label \"kubernetes.io/hostname\" is restricted'}
            operator: {type: string}
            values: {type: array, items: {type: string}}
        x-kubernetes-validations:
          - rule: \"self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)\"
            message: In needs a value
          - rule: \"self.all(x, (x.operator == 'Gt') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)\"
            message: Gt needs an integer";

#[test]
fn a_missing_key_is_an_evaluation_error() {
    assert_eq!(
        error(REQUIREMENTS, "{requirements: [{key: a, operator: In}]}"),
        "spec.requirements: Invalid value: \"array\": no such key: values evaluating rule: In needs a value"
    );
}

#[test]
fn a_failed_conversion_is_an_evaluation_error() {
    assert_eq!(
        error(REQUIREMENTS, "{requirements: [{key: a, operator: Gt, values: [abc]}]}"),
        "spec.requirements: Invalid value: \"array\": type conversion error from 'string' to 'int' evaluating rule: Gt \
         needs an integer"
    );
}

#[test]
fn a_rule_on_a_scalar_shows_the_value_and_one_on_a_list_does_not() {
    assert_eq!(
        error(
            REQUIREMENTS,
            "{requirements: [{key: kubernetes.io/hostname, operator: Exists}]}"
        ),
        "spec.requirements[0].key: Invalid value: \"kubernetes.io/hostname\": label \"kubernetes.io/hostname\" is \
         restricted"
    );
    assert_eq!(
        error(REQUIREMENTS, "{requirements: [{key: a, operator: In, values: []}]}"),
        "spec.requirements: Invalid value: In needs a value"
    );
}

#[test]
fn errors_inside_or_and_all_are_absorbed_when_the_rest_decides() {
    let schema = |rule: &str| {
        format!(
            "{{type: object, properties: {{m: {{type: object, additionalProperties: {{type: string}}}}, l: {{type: array, items: {{type: string}}}}}}, \
             x-kubernetes-validations: [{{rule: {rule:?}, message: no}}]}}"
        )
    };
    assert!(admit(&schema("int('x') > 0 || true"), "{}").is_ok());
    assert!(admit(&schema("!(int('x') > 0 && false)"), "{}").is_ok());
    assert!(admit(&schema("!self.l.all(x, int(x) > 5)"), "{l: [a, '1']}").is_ok());
    assert!(admit(&schema("self.l.exists(x, int(x) > 0)"), "{l: [a, '1']}").is_ok());
}

const TRANSITIONS: &str = "
    type: object
    properties:
      replicas: {type: integer}
      group:
        type: string
        x-kubernetes-validations: [{rule: self == oldSelf, message: group is immutable}]
      list:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name]
        items:
          type: object
          properties: {name: {type: string}, v: {type: integer}}
          x-kubernetes-validations: [{rule: self.v >= oldSelf.v, message: v may only grow}]
    x-kubernetes-validations:
      - {rule: has(self.replicas) == has(oldSelf.replicas), message: cannot switch}";

#[test]
fn transition_rules_run_only_on_update() {
    assert!(admit(TRANSITIONS, "{group: a}").is_ok());
    assert_eq!(
        update(TRANSITIONS, "{group: b}", Some("{group: a}")).expect_err("immutable"),
        "spec.group: Invalid value: \"b\": group is immutable"
    );
    assert_eq!(
        update(TRANSITIONS, "{}", Some("{replicas: 1}")).expect_err("transition"),
        "spec: Invalid value: cannot switch"
    );
    assert!(
        update(TRANSITIONS, "{group: a}", Some("{}")).is_ok(),
        "the field did not exist before"
    );
}

#[test]
fn transition_rules_match_map_list_entries_by_key() {
    let old = Some("{list: [{name: a, v: 1}, {name: b, v: 5}]}");
    assert!(
        update(
            TRANSITIONS,
            "{list: [{name: b, v: 5}, {name: a, v: 2}, {name: c, v: 0}]}",
            old
        )
        .is_ok()
    );
    assert_eq!(
        update(TRANSITIONS, "{list: [{name: b, v: 4}]}", old).expect_err("shrinks"),
        "spec.list[0]: Invalid value: v may only grow"
    );
}

#[test]
fn optional_old_self_runs_on_create_too() {
    let schema = "
        type: object
        properties: {a: {type: integer}}
        x-kubernetes-validations:
          - {rule: 'oldSelf.hasValue() || self.a == 1', optionalOldSelf: true, message: starts at 1}";
    assert!(admit(schema, "{a: 1}").is_ok());
    assert_eq!(error(schema, "{a: 2}"), "spec: Invalid value: starts at 1");
    assert!(update(schema, "{a: 2}", Some("{a: 1}")).is_ok());
}

#[test]
fn unchanged_invalid_parts_are_tolerated_on_update() {
    let schema = "
        type: object
        properties:
          old: {type: string, enum: [A]}
          new: {type: string}";
    assert!(update(schema, "{old: B, new: x}", Some("{old: B, new: y}")).is_ok());
    assert!(update(schema, "{old: C, new: x}", Some("{old: B, new: y}")).is_err());
}

#[test]
fn message_expression_reason_and_field_path_shape_the_error() {
    let schema = "
        type: object
        properties: {a: {type: integer}, b: {type: integer}}
        x-kubernetes-validations:
          - {rule: self.a < self.b, messageExpression: '\"a is \" + string(self.a)', message: fallback, fieldPath: .a, reason: FieldValueForbidden}
          - {rule: self.b < 3}";
    assert_eq!(
        error(schema, "{a: 9, b: 5}"),
        "spec.a: Forbidden: a is 9\nspec: Invalid value: failed rule: self.b < 3"
    );
}

#[test]
fn kubernetes_functions_are_there() {
    let check = |rule: &str| {
        let schema = format!(
            "{{type: object, properties: {{s: {{type: string}}, l: {{type: array, items: {{type: integer}}}}, \
              namespace: {{type: string}}, n: {{type: number}}, labels: {{type: object, additionalProperties: {{type: string}}}}}}, \
              x-kubernetes-validations: [{{rule: {}}}]}}",
            json!(rule)
        );
        let object = "{s: 'a.b/c', l: [1, 2, 3], namespace: ns, n: 2, labels: {x/y: z}}";
        if let Err(message) = admit(&schema, object) {
            panic!("{rule}: {message}");
        }
    };
    check("self.s.find('[a-z]+$') == 'c' && self.s.find('\\\\d') == ''");
    check("self.s.findAll('[a-z]') == ['a', 'b', 'c'] && self.s.findAll('[a-z]', 1) == ['a']");
    check("self.s.split('/')[1] == 'c'");
    check("self.s.matches('^a.*c$') && self.s.startsWith('a') && self.s.endsWith('c') && self.s.contains('b/')");
    check("self.l.isSorted() && self.l.sum() == 6 && self.l.min() == 1 && self.l.max() == 3 && self.l.indexOf(2) == 1");
    check("self.__namespace__ == 'ns'");
    check("self.n == 2.0");
    check("'x/y' in self.labels && self.labels.all(k, k.find('^[^/]*') == 'x') && self.labels['x/y'] == 'z'");
    check("self.l.filter(i, i > 1).size() == 2 && self.l.exists(i, i == 3)");
    check("isQuantity('100m') && !isQuantity('ten')");
    check("self.s.lowerAscii() == 'a.b/c' && self.s.substring(2) == 'b/c'");
}

#[test]
fn a_rule_that_does_not_parse_is_refused_with_the_definition() {
    let document = json!({"type": "object", "properties": {"spec": {"type": "object",
        "x-kubernetes-validations": [{"rule": "self.("}]}}});
    let errors = CompiledSchema::compile(&document, "schema").expect_err("bad rules");
    assert_eq!(
        errors[0].field,
        "schema.properties[spec].x-kubernetes-validations[0].rule"
    );
}

#[test]
fn json_paths_follow_fields_indexes_and_filters() {
    let object = json!({"metadata": {"labels": {"a.b/c": "x"}}, "status": {"conditions": [
        {"type": "Launched", "status": "True"}, {"type": "Ready", "status": "False"}], "list": [1, 2]}});
    let first = |path: &str| {
        JsonPath::parse(path)
            .expect("parses")
            .first(&object)
            .cloned()
            .unwrap_or(Value::Null)
    };
    assert_eq!(first(".status.conditions[?(@.type==\"Ready\")].status"), "False");
    assert_eq!(first(".status.conditions[?(@.type=='Launched')].status"), "True");
    assert_eq!(first(".status.list[1]"), 2);
    assert_eq!(first(".status.list[-1]"), 2);
    assert_eq!(first(".metadata.labels.a\\.b/c"), "x");
    assert_eq!(first(".metadata.labels['a.b/c']"), "x");
    assert_eq!(first("{.status.list[*]}"), 1);
    assert_eq!(first(".status.missing.deeper"), Value::Null);
    assert!(JsonPath::parse(".a[?(x)]").is_err());
}

fn node_pool_definition() -> Value {
    yaml(
        "
        metadata: {name: nodepools.karpenter.sh}
        spec:
          group: karpenter.sh
          scope: Cluster
          names: {kind: NodePool, plural: nodepools, categories: [karpenter]}
          versions:
            - name: v1
              served: true
              storage: true
              subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.nodes}}
              additionalPrinterColumns:
                - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type==\"Ready\")].status'}
                - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
                - {name: Weight, type: integer, priority: 1, jsonPath: .spec.weight}
              schema:
                openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {weight: {type: integer}}}}}",
    )
}

#[test]
fn a_definition_fills_in_its_names_and_reads_its_columns() {
    let definition = Definition::parse(&node_pool_definition()).expect("valid");
    assert_eq!(definition.names.list_kind, "NodePoolList");
    assert_eq!(definition.names.singular, "nodepool");
    let version = definition.version("v1").expect("v1 is there");
    assert!(version.has_status && version.scale.is_some());
    let object = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"weight": 5}});
    let cells: Vec<Value> = version
        .columns
        .iter()
        .map(|c| c.cell(&object, |t| format!("since {t}")))
        .collect();
    assert_eq!(cells, [Value::Null, json!("since 2026-01-01T00:00:00Z"), json!(5)]);
}

#[test]
fn a_definition_needs_a_matching_name_one_storage_version_and_a_schema() {
    let mut crd = node_pool_definition();
    crd["metadata"]["name"] = json!("pools.karpenter.sh");
    assert_eq!(Definition::parse(&crd).expect_err("name")[0].field, "metadata.name");
    let mut crd = node_pool_definition();
    crd["spec"]["versions"][0]["storage"] = json!(false);
    assert_eq!(Definition::parse(&crd).expect_err("storage")[0].field, "spec.versions");
    let mut crd = node_pool_definition();
    crd["spec"]["versions"][0]["schema"] = json!({});
    assert_eq!(
        Definition::parse(&crd).expect_err("schema")[0].field,
        "spec.versions[0].schema.openAPIV3Schema"
    );
}
