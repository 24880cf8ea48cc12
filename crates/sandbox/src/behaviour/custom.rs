//! Custom resources: from definition to objects and back.

use serde_json::{Value, json};

use super::cluster::version;
use super::{Answer, Cluster, behaviours};

behaviours! {
    "3.1" => a_definition_adds_a_resource_and_takes_it_away,
    "3.2" => objects_are_pruned_and_defaulted,
    "3.3" => every_keyword_has_its_refusal,
    "3.4" => rules_are_checked_on_create_and_update,
    "2.5" => custom_status_is_written_apart,
    "2.3" => custom_objects_need_a_version_to_be_replaced,
    "3.5" => custom_objects_scale,
    "3.5" => custom_tables_have_printer_columns,
    "3.1" => versions_share_one_object,
    "2.11" => selectable_fields_select,
    "1.4" => custom_bodies_must_say_what_they_are,
    "2.6" => strategic_patches_are_not_for_custom_objects,
    "3.1" => definitions_are_checked,
    "3.3" => basic_errors_hide_the_rules_and_others_do_not,
    "3.4" => rules_that_can_not_be_evaluated_refuse,
    "3.4" => rules_have_their_paths_and_reasons,
    "3.3" => repeated_conditions_in_a_status_are_refused,
    "3.1" => a_definition_may_come_back,
}

/// A definition with a bit of everything, in a group of the test's own.
fn definition(cluster: &Cluster) -> Value {
    let group = group(cluster);
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 100},
                    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4, "minLength": 2},
                    "colour": {"type": "string", "enum": ["Red", "Blue"], "default": "Red"},
                    "nested": {
                        "type": "object", "default": {},
                        "properties": {"depth": {"type": "integer", "default": 3}},
                    },
                    "items": {
                        "type": "array", "maxItems": 3, "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["key"],
                        "items": {"type": "object", "required": ["key"], "properties": {
                            "key": {"type": "string", "maxLength": 20}, "value": {"type": "string"}}},
                    },
                    "fixed": {"type": "string", "maxLength": 20,
                        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is immutable"}]},
                    "amount": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true},
                    "replicas": {"type": "integer"},
                    "tags": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "string", "maxLength": 20}},
                    "when": {"type": "string", "format": "date-time"},
                    "digits": {"type": "string", "pattern": "^\\d+$", "maxLength": 20},
                    "terms": {
                        "type": "array", "maxItems": 5, "minItems": 1,
                        "items": {"type": "object", "required": ["key", "operator"], "properties": {
                            "key": {"type": "string", "maxLength": 20,
                                "x-kubernetes-validations": [
                                    {"rule": "self != 'secret'", "message": "that key is restricted", "reason": "FieldValueForbidden"}]},
                            "operator": {"type": "string", "maxLength": 20},
                            "values": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 20}}}},
                        "x-kubernetes-validations": [
                            {"rule": "self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)", "message": "In needs values"},
                            {"rule": "self.all(x, x.operator == 'Gt' ? int(x.values[0]) >= 0 : true)", "message": "Gt needs a number"},
                        ],
                    },
                },
                "x-kubernetes-validations": [
                    {"rule": "self.size != 13", "message": "thirteen is unlucky"},
                ],
            },
            "status": {"type": "object", "properties": {
                "replicas": {"type": "integer"}, "note": {"type": "string"},
                "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                    "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}},
            }},
        },
    });
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            "selectableFields": [{"jsonPath": ".spec.colour"}],
        })
    };
    json!({
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}

fn group(cluster: &Cluster) -> String {
    format!("g{}.example.com", cluster.unique)
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Creates the definition and waits until it is served; the path of its objects.
pub(super) async fn establish(cluster: &Cluster) -> String {
    cluster.post(DEFINITIONS, &definition(cluster)).await.expect_code(201);
    let own = format!("{DEFINITIONS}/widgets.{}", group(cluster));
    cluster
        .wait(&own, "Established", |answer| {
            let definition = answer.json();
            let conditions = definition["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
        })
        .await;
    let path = format!("/apis/{}/v1/namespaces/{}/widgets", group(cluster), cluster.namespace);
    cluster.wait_for_code(&path, 200).await;
    path
}

pub(super) async fn forget(cluster: &Cluster) {
    cluster
        .delete(&format!("{DEFINITIONS}/widgets.{}", group(cluster)))
        .await
        .expect_code(200);
}

fn widget(cluster: &Cluster, name: &str, spec: Value) -> Value {
    json!({"kind": "Widget", "apiVersion": format!("{}/v1", group(cluster)), "metadata": {"name": name}, "spec": spec})
}

async fn a_definition_adds_a_resource_and_takes_it_away(cluster: Cluster) {
    let path = establish(&cluster).await;
    // Discovery learns of a kind apart from those who serve it.
    cluster
        .wait(&format!("/apis/{}/v1", group(&cluster)), "widgets", |answer| {
            answer.code == 200 && answer.json()["resources"][0]["name"] == "widgets"
        })
        .await;
    cluster
        .wait(&format!("/apis/{}", group(&cluster)), "v1 as preferred", |answer| {
            answer.code == 200 && answer.json()["preferredVersion"]["version"] == "v1"
        })
        .await;
    let created = cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 1})))
        .await
        .expect_code(201);
    let mut watch = cluster
        .watch(&path, &format!("resourceVersion={}", version(&created)))
        .await;
    forget(&cluster).await;
    assert_eq!(watch.about("a").await.0, "DELETED");
    while watch.next().await.is_some() {}
    let gone = cluster.wait_for_code(&path, 404).await;
    assert_eq!(gone.text.trim(), "404 page not found");
}

async fn objects_are_pruned_and_defaulted(cluster: Cluster) {
    let path = establish(&cluster).await;
    let body = widget(
        &cluster,
        "a",
        json!({"size": 1, "unknown": true, "name": null, "amount": 10}),
    );
    let created = cluster.post(&path, &body).await;
    assert!(
        created.header("warning").contains("unknown field"),
        "{}",
        created.header("warning")
    );
    let spec = created.expect_code(201)["spec"].clone();
    assert_eq!(
        spec,
        json!({"size": 1, "colour": "Red", "nested": {"depth": 3}, "amount": 10})
    );
    let strict = format!("{path}?fieldValidation=Strict");
    cluster
        .post(&strict, &widget(&cluster, "b", json!({"size": 1, "unknown": true})))
        .await
        .expect_status(400, "BadRequest");
    forget(&cluster).await;
}

async fn every_keyword_has_its_refusal(cluster: Cluster) {
    let path = establish(&cluster).await;
    for (spec, field, reason, text) in [
        (json!({}), "spec.size", "FieldValueRequired", "Required value"),
        (
            json!({"size": "x"}),
            "spec.size",
            "FieldValueTypeInvalid",
            "must be of type integer",
        ),
        (
            json!({"size": 0}),
            "spec.size",
            "FieldValueInvalid",
            "should be greater than or equal to 1",
        ),
        (
            json!({"size": 101}),
            "spec.size",
            "FieldValueInvalid",
            "should be less than or equal to 100",
        ),
        (
            json!({"size": 1, "colour": "Green"}),
            "spec.colour",
            "FieldValueNotSupported",
            "supported values: ",
        ),
        (
            json!({"size": 1, "name": "ABC"}),
            "spec.name",
            "FieldValueInvalid",
            "should match '^[a-z]+$'",
        ),
        (
            json!({"size": 1, "name": "abcdef"}),
            "spec.name",
            "FieldValueTooLong",
            "Too long",
        ),
        (
            json!({"size": 1, "name": "a"}),
            "spec.name",
            "FieldValueInvalid",
            "should be at least 2 chars long",
        ),
        (
            json!({"size": 1, "items": [{"key": "a"}, {"key": "a"}]}),
            "spec.items[1]",
            "FieldValueDuplicate",
            "Duplicate value",
        ),
        (
            json!({"size": 1, "items": [{"key": "a"}, {"key": "b"}, {"key": "c"}, {"key": "d"}]}),
            "spec.items",
            "FieldValueTooMany",
            "must have at most 3 items",
        ),
        (
            json!({"size": 1, "tags": {"a": "", "b": "", "c": ""}}),
            "spec.tags",
            "FieldValueTooMany",
            "must have at most 2 items",
        ),
        (
            json!({"size": 1, "terms": []}),
            "spec.terms",
            "FieldValueInvalid",
            "should have at least 1 items",
        ),
        (
            json!({"size": 1, "when": "tomorrow"}),
            "spec.when",
            "FieldValueTypeInvalid",
            "must be of type date-time",
        ),
        (
            json!({"size": 1, "digits": "\u{664}\u{662}"}),
            "spec.digits",
            "FieldValueInvalid",
            "should match '^\\d+$'",
        ),
        (
            json!({"size": 1, "amount": 1.5}),
            "<nil>",
            "FieldValueInvalid",
            "must validate at least one schema (anyOf)",
        ),
    ] {
        let refused = cluster.post(&path, &widget(&cluster, "a", spec.clone())).await;
        refused.expect_status(422, "Invalid");
        let causes = refused.json()["details"]["causes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let cause = causes.iter().find(|cause| cause["field"] == field);
        let cause = cause.unwrap_or_else(|| panic!("{spec} has no cause for {field}: {}", refused.text));
        assert_eq!(cause["reason"], reason, "{spec}: {}", refused.text);
        assert!(
            cause["message"].as_str().is_some_and(|message| message.contains(text)),
            "{spec}: {}",
            refused.text
        );
    }
    forget(&cluster).await;
}

async fn rules_are_checked_on_create_and_update(cluster: Cluster) {
    let path = establish(&cluster).await;
    let unlucky = cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 13})))
        .await
        .expect_status(422, "Invalid");
    assert!(unlucky.contains("thirteen is unlucky"), "{unlucky}");
    cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 1, "fixed": "x"})))
        .await
        .expect_code(201);
    let change = json!({"spec": {"fixed": "y"}});
    let message = cluster
        .patch(&format!("{path}/a"), "merge", &change)
        .await
        .expect_status(422, "Invalid");
    assert!(
        message.contains("spec.fixed: Invalid value: \"y\": fixed is immutable"),
        "{message}"
    );
    cluster
        .patch(&format!("{path}/a"), "merge", &json!({"spec": {"size": 2}}))
        .await
        .expect_code(200);
    forget(&cluster).await;
}

async fn custom_status_is_written_apart(cluster: Cluster) {
    let path = establish(&cluster).await;
    let mut body = widget(&cluster, "a", json!({"size": 1}));
    body["status"] = json!({"note": "dropped"});
    let created = cluster.post(&path, &body).await.expect_code(201);
    assert!(created.get("status").is_none());
    assert_eq!(created["metadata"]["generation"], 1);
    let own = format!("{path}/a");
    let both = json!({"metadata": {"labels": {"a": "b"}}, "status": {"note": "kept"}, "spec": {"size": 9}});
    let written = cluster
        .patch(&format!("{own}/status"), "merge", &both)
        .await
        .expect_code(200);
    assert_eq!(
        (&written["status"]["note"], &written["spec"]["size"]),
        (&"kept".into(), &1.into())
    );
    assert!(
        written["metadata"]["labels"].is_null(),
        "custom metadata is not written through the status"
    );
    assert_eq!(written["metadata"]["generation"], 1);
    let ignored = cluster
        .patch(&own, "merge", &json!({"status": {"note": "other"}}))
        .await
        .expect_code(200);
    assert_eq!(version(&ignored), version(&written));
    let changed = cluster
        .patch(&own, "merge", &json!({"spec": {"size": 2}}))
        .await
        .expect_code(200);
    assert_eq!(changed["metadata"]["generation"], 2);
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.patch(&own, "merge", &hold).await.expect_code(200);
    let deleted = cluster.delete(&own).await.expect_code(200);
    assert_eq!(deleted["metadata"]["generation"], 3);
    cluster
        .patch(&own, "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .expect_code(200);
    forget(&cluster).await;
}

async fn custom_objects_need_a_version_to_be_replaced(cluster: Cluster) {
    let path = establish(&cluster).await;
    let body = widget(&cluster, "a", json!({"size": 1}));
    let created = cluster.post(&path, &body).await.expect_code(201);
    let message = cluster
        .put(&format!("{path}/a"), &body)
        .await
        .expect_status(422, "Invalid");
    assert!(
        message.contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update"),
        "{message}"
    );
    cluster.put(&format!("{path}/a"), &created).await.expect_code(200);
    forget(&cluster).await;
}

async fn custom_objects_scale(cluster: Cluster) {
    let path = establish(&cluster).await;
    cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 1})))
        .await
        .expect_code(201);
    let scale = format!("{path}/a/scale");
    let missing = cluster.get(&scale).await.expect_status(500, "InternalError");
    assert!(
        missing.contains("the spec replicas field \".spec.replicas\" does not exist"),
        "{missing}"
    );
    cluster
        .patch(&scale, "merge", &json!({"spec": {"replicas": 3}}))
        .await
        .expect_code(200);
    let read = cluster.get(&scale).await.expect_code(200);
    assert_eq!((&read["kind"], &read["spec"]["replicas"]), (&"Scale".into(), &3.into()));
    assert_eq!(
        cluster.get(&format!("{path}/a")).await.expect_code(200)["spec"]["replicas"],
        3
    );
    forget(&cluster).await;
}

async fn custom_tables_have_printer_columns(cluster: Cluster) {
    let path = establish(&cluster).await;
    cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 7})))
        .await
        .expect_code(201);
    let table = cluster
        .get_as(&path, "application/json;as=Table;v=v1;g=meta.k8s.io")
        .await
        .expect_code(200);
    let columns: Vec<&Value> = table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(columns, ["Name", "Size"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 7]));
    forget(&cluster).await;
}

async fn versions_share_one_object(cluster: Cluster) {
    let path = establish(&cluster).await;
    cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 7})))
        .await
        .expect_code(201);
    let beta = cluster
        .get(&format!("{}/a", path.replace("/v1/", "/v1beta1/")))
        .await
        .expect_code(200);
    assert_eq!(beta["apiVersion"], format!("{}/v1beta1", group(&cluster)));
    assert_eq!(beta["spec"]["size"], 7);
    let list = cluster.get(&path).await.expect_code(200);
    assert_eq!(list["items"][0]["kind"], "Widget");
    assert_eq!(list["metadata"]["continue"], "");
    forget(&cluster).await;
}

async fn selectable_fields_select(cluster: Cluster) {
    let path = establish(&cluster).await;
    for (name, colour) in [("a", "Red"), ("b", "Blue")] {
        let body = widget(&cluster, name, json!({"size": 1, "colour": colour}));
        cluster.post(&path, &body).await.expect_code(201);
    }
    let found = cluster
        .get(&format!("{path}?fieldSelector=spec.colour=Blue"))
        .await
        .expect_code(200);
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
    let message = cluster
        .get(&format!("{path}?fieldSelector=spec.size=1"))
        .await
        .expect_status(400, "BadRequest");
    assert!(message.contains("field label not supported: spec.size"), "{message}");
    forget(&cluster).await;
}

async fn custom_bodies_must_say_what_they_are(cluster: Cluster) {
    let path = establish(&cluster).await;
    let kindless = json!({"metadata": {"name": "a"}, "spec": {"size": 1}});
    let message = cluster.post(&path, &kindless).await.expect_status(400, "BadRequest");
    assert!(message.contains("Object 'Kind' is missing in"), "{message}");
    let mut wrong = widget(&cluster, "a", json!({"size": 1}));
    wrong["kind"] = "Gadget".into();
    let refused = cluster.post(&path, &wrong).await;
    assert!(refused.code == 400 || refused.code == 422, "{}", refused.text);
    forget(&cluster).await;
}

async fn strategic_patches_are_not_for_custom_objects(cluster: Cluster) {
    let path = establish(&cluster).await;
    cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 1})))
        .await
        .expect_code(201);
    let patch = json!({"spec": {"size": 2}});
    let refused = cluster.patch(&format!("{path}/a"), "strategic-merge", &patch).await;
    let message = refused.expect_status(415, "UnsupportedMediaType");
    assert!(message.contains("application/merge-patch+json"), "{message}");
    let wanted = json!({
        "kind": "Widget", "apiVersion": format!("{}/v1", group(&cluster)), "metadata": {"name": "a"},
        "spec": {"size": 1, "items": [{"key": "x", "value": "1"}]},
    });
    let applied = cluster
        .apply(&format!("{path}/a"), "one", "&force=true", &wanted)
        .await
        .expect_code(200);
    assert_eq!(applied["spec"]["items"], json!([{"key": "x", "value": "1"}]));
    forget(&cluster).await;
}

async fn definitions_are_checked(cluster: Cluster) {
    let mut misnamed = definition(&cluster);
    misnamed["metadata"]["name"] = "other.example.com".into();
    cluster.post(DEFINITIONS, &misnamed).await.expect_status(422, "Invalid");
    let mut twice = definition(&cluster);
    twice["spec"]["versions"][1]["storage"] = true.into();
    cluster.post(DEFINITIONS, &twice).await.expect_status(422, "Invalid");
    let mut schemaless = definition(&cluster);
    schemaless["spec"]["versions"][0]["schema"] = json!({});
    cluster
        .post(DEFINITIONS, &schemaless)
        .await
        .expect_status(422, "Invalid");
}

/// The causes of a refusal, as (field, message).
fn causes(refused: &Answer) -> Vec<(String, String)> {
    let status = refused.json();
    let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    causes
        .iter()
        .map(|cause| (text(&cause["field"]), text(&cause["message"])))
        .collect()
}

async fn basic_errors_hide_the_rules_and_others_do_not(cluster: Cluster) {
    let path = establish(&cluster).await;
    let basic = widget(&cluster, "a", json!({"size": 13, "colour": "Green"}));
    let refused = cluster.post(&path, &basic).await;
    refused.expect_status(422, "Invalid");
    let found = causes(&refused);
    assert!(
        found.iter().any(|(field, message)| field == "<nil>"
            && message.contains("some validation rules were not checked because the object was invalid")),
        "{found:?}"
    );
    assert!(!refused.text.contains("thirteen"), "{found:?}");
    let other = widget(&cluster, "a", json!({"size": 13, "name": "ABC"}));
    let refused = cluster.post(&path, &other).await;
    refused.expect_status(422, "Invalid");
    let found = causes(&refused);
    assert!(found.iter().any(|(field, _)| field == "spec.name"), "{found:?}");
    assert!(
        found.iter().any(|(_, message)| message.contains("thirteen is unlucky")),
        "{found:?}"
    );
    forget(&cluster).await;
}

async fn rules_that_can_not_be_evaluated_refuse(cluster: Cluster) {
    let path = establish(&cluster).await;
    for (term, text) in [
        (
            json!({"key": "a", "operator": "In"}),
            "no such key: values evaluating rule: In needs values",
        ),
        (
            json!({"key": "a", "operator": "Gt", "values": ["abc"]}),
            "type conversion error from 'string' to 'int' evaluating rule: Gt needs a number",
        ),
        (json!({"key": "a", "operator": "In", "values": []}), "In needs values"),
    ] {
        let refused = cluster
            .post(&path, &widget(&cluster, "a", json!({"size": 1, "terms": [term]})))
            .await;
        refused.expect_status(422, "Invalid");
        let found = causes(&refused);
        assert!(
            found
                .iter()
                .any(|(field, message)| field == "spec.terms" && message.contains(text)),
            "{text}: {found:?}"
        );
    }
    forget(&cluster).await;
}

async fn rules_have_their_paths_and_reasons(cluster: Cluster) {
    let path = establish(&cluster).await;
    let terms = json!([{"key": "a", "operator": "Exists"}, {"key": "secret", "operator": "Exists"}]);
    let refused = cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 1, "terms": terms})))
        .await;
    let message = refused.expect_status(422, "Invalid");
    assert!(
        message.contains("spec.terms[1].key: Forbidden: that key is restricted"),
        "{message}"
    );
    let cause = &refused.json()["details"]["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&"FieldValueForbidden".into(), &"spec.terms[1].key".into())
    );
    forget(&cluster).await;
}

async fn repeated_conditions_in_a_status_are_refused(cluster: Cluster) {
    let path = establish(&cluster).await;
    cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 1})))
        .await
        .expect_code(201);
    let twice = json!({"status": {"conditions": [{"type": "Ready"}, {"type": "Ready"}]}});
    let refused = cluster.patch(&format!("{path}/a/status"), "merge", &twice).await;
    refused.expect_status(422, "Invalid");
    let found = causes(&refused);
    assert!(
        found
            .iter()
            .any(|(field, message)| field == "status.conditions[1]" && message.contains("Duplicate value")),
        "{found:?}"
    );
    forget(&cluster).await;
}

async fn a_definition_may_come_back(cluster: Cluster) {
    let path = establish(&cluster).await;
    cluster
        .post(&path, &widget(&cluster, "a", json!({"size": 1})))
        .await
        .expect_code(201);
    forget(&cluster).await;
    let own = format!("{DEFINITIONS}/widgets.{}", group(&cluster));
    cluster.wait_for_code(&own, 404).await;
    let path = establish(&cluster).await;
    assert_eq!(cluster.get(&path).await.expect_code(200)["items"], json!([]));
    forget(&cluster).await;
}
