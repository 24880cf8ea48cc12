use serde_json::{Value, json};

use super::*;
use crate::node_class::status::ZONE_READY;

fn class(spec: Value) -> CloudStackNodeClass {
    let mut whole = json!({
        "zone": "zone-1", "networkSelectorTerms": [{"name": "net"}], "templateSelectorTerms": [{"name": "image"}],
        "serviceOfferingSelectorTerms": [{"name": "small"}],
    });
    for (key, value) in spec.as_object().expect("an object") {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "a"}, "spec": whole,
    }))
    .expect("a class")
}

fn of<T: serde::de::DeserializeOwned>(value: Value) -> Arc<Vec<T>> {
    Arc::new(serde_json::from_value(value).expect("a list"))
}

fn lists() -> Lists {
    let template = |id: &str, created: &str, more: Value| {
        let mut own = json!({
            "id": id, "name": "image", "isready": true, "hypervisor": "KVM", "created": created, "zoneid": "z1", "arch": "x86_64",
            "ostypeid": "os-1", "ostypename": "Ubuntu 24.04",
        });
        for (key, value) in more.as_object().expect("an object") {
            own[key] = value.clone();
        }
        own
    };
    Lists {
        zones: of(json!([{"id": "z1", "name": "zone-1", "allocationstate": "Enabled", "networktype": "Advanced"}])),
        offerings: of(json!([
            {"id": "o1", "name": "small", "state": "Active", "cpunumber": 1, "memory": 1024, "serviceofferingdetails": {"karpenter.sh/discovery": "c1"}},
            {"id": "o2", "name": "tagged", "state": "Active", "cpunumber": 2, "memory": 2048, "hosttags": "karpenter.sh/discovery=c1,gpu-pool"},
            {"id": "o3", "name": "plain", "state": "Active", "cpunumber": 4, "memory": 4096},
            {"id": "o4", "name": "volatile", "state": "Active", "cpunumber": 4, "memory": 4096, "isvolatile": true},
            {"id": "o5", "name": "old", "state": "Inactive", "cpunumber": 4, "memory": 4096},
        ])),
        templates: [("z1".to_owned(), of(json!([
            template("t-old", "2026-01-01T00:00:00+0000", json!({})),
            template("t-new", "2026-02-01T00:00:00+0000", json!({})),
            template("t-arm", "2026-03-01T00:00:00+0000", json!({"arch": "aarch64", "name": "image-arm"})),
            template("t-pending", "2026-04-01T00:00:00+0000", json!({"isready": false, "name": "pending"})),
        ])))]
        .into(),
        networks: [("z1".to_owned(), of(json!([
            {"id": "n1", "name": "net", "type": "Isolated", "state": "Allocated", "canusefordeploy": true, "traffictype": "Guest",
                "service": [{"name": "UserData"}], "tags": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}, {"key": "c", "value": "3"}]},
            {"id": "n2", "name": "l2", "type": "L2", "state": "Allocated", "canusefordeploy": true, "traffictype": "Guest", "tags": [{"key": "a", "value": "1"}]},
        ])))]
        .into(),
        ..Lists::default()
    }
}

fn resolved(spec: Value) -> Resolution {
    let class = class(spec);
    let lists = lists();
    let mut problems = BTreeMap::new();
    let zones = zones(&class, &lists.zones, &mut problems);
    resolve(&class, zones, &lists, problems)
}

fn offering_names(spec: Value) -> Vec<String> {
    resolved(spec)
        .offerings
        .into_iter()
        .map(|own| own.offering.name)
        .collect()
}

#[test]
fn tags_of_offerings_are_details_and_host_tags() {
    let terms = |tags: Value| json!({"serviceOfferingSelectorTerms": [{"tags": tags}]});
    assert_eq!(
        offering_names(terms(json!({"karpenter.sh/discovery": "c1"}))),
        ["small", "tagged"]
    );
    assert_eq!(offering_names(terms(json!({"gpu-pool": "*"}))), ["tagged"]);
    assert_eq!(offering_names(terms(json!({"gpu-pool": "gpu-pool"}))), ["tagged"]);
    assert!(offering_names(terms(json!({"karpenter.sh/discovery": "other"}))).is_empty());
}

#[test]
fn fields_of_a_term_are_anded_and_terms_are_ored() {
    let term = |term: Value| json!({"serviceOfferingSelectorTerms": term});
    assert!(offering_names(term(json!([{"id": "o1", "name": "plain"}]))).is_empty());
    assert_eq!(
        offering_names(term(json!([{"name": "plain"}, {"id": "o1"}]))),
        ["plain", "small"]
    );
    assert_eq!(
        offering_names(term(json!([{"minCPU": 2, "maxMemory": 2048}]))),
        ["tagged"]
    );
}

#[test]
fn inactive_offerings_are_never_used_and_volatile_ones_only_by_name() {
    let term = |term: Value| json!({"serviceOfferingSelectorTerms": term});
    assert_eq!(offering_names(term(json!([{"minCPU": 4}]))), ["plain"]);
    assert_eq!(offering_names(term(json!([{"name": "volatile"}]))), ["volatile"]);
    assert!(offering_names(term(json!([{"name": "old"}]))).is_empty());
}

fn template_ids(spec: Value) -> Vec<String> {
    let resolution = resolved(spec);
    resolution.zones[0]
        .templates
        .iter()
        .map(|own| own.template.id.clone())
        .collect()
}

#[test]
fn the_newest_template_comes_first_and_an_os_type_alone_selects() {
    assert_eq!(template_ids(json!({})), ["t-new", "t-old"]);
    assert_eq!(
        template_ids(json!({"templateSelectorTerms": [{"osType": "Ubuntu 24.04", "arch": "arm64"}]})),
        ["t-arm"]
    );
    assert_eq!(
        template_ids(json!({"templateSelectorTerms": [{"osType": "os-1"}]})),
        ["t-arm", "t-new", "t-old"]
    );
    assert_eq!(
        template_ids(json!({"templateSelectorTerms": [{"name": "image", "newest": true}]})),
        ["t-new"]
    );
}

#[test]
fn a_template_that_is_not_ready_is_told_from_none() {
    let problem = |spec: Value| resolved(spec).problems.get(TEMPLATE_READY).map(|own| own.reason);
    assert_eq!(
        problem(json!({"templateSelectorTerms": [{"name": "pending"}]})),
        Some("TemplateNotReady")
    );
    assert_eq!(
        problem(json!({"templateSelectorTerms": [{"name": "nope"}]})),
        Some("TemplateNotFound")
    );
    assert_eq!(problem(json!({})), None);
}

#[test]
fn a_fresh_network_is_usable_and_all_its_tags_must_match() {
    let ids = |spec: Value| -> Vec<String> {
        resolved(spec).zones[0]
            .networks
            .iter()
            .map(|own| own.id.clone())
            .collect()
    };
    assert_eq!(ids(json!({})), ["n1"]);
    assert_eq!(
        ids(json!({"networkSelectorTerms": [{"tags": {"a": "1", "b": "2"}}]})),
        ["n1"]
    );
    let three = |last: &str| json!({"networkSelectorTerms": [{"tags": {"a": "1", "b": "2", "c": last}}]});
    assert_eq!(ids(three("3")), ["n1"]);
    assert!(
        ids(three("4")).is_empty(),
        "the server would have found it by any of them"
    );
    assert_eq!(
        ids(json!({"networkSelectorTerms": [{"tags": {"a": "*"}}]})),
        ["n2", "n1"]
    );
}

#[test]
fn a_network_without_user_data_is_refused_only_where_user_data_is_used() {
    let problem = |spec: Value| resolved(spec).problems.get(NETWORK_READY).map(|own| own.reason);
    assert_eq!(problem(json!({"networkSelectorTerms": [{"name": "l2"}]})), None);
    let used = json!({"networkSelectorTerms": [{"name": "l2"}], "userData": "x"});
    assert_eq!(problem(used), Some("UserDataServiceMissing"));
}

#[test]
fn a_zone_is_meant_by_name_or_by_id() {
    assert!(resolved(json!({"zone": "z1"})).is_usable());
    assert_eq!(
        resolved(json!({"zone": "nowhere"})).problems[ZONE_READY].reason,
        "ZoneNotFound"
    );
}

#[test]
fn templates_of_the_same_moment_come_in_the_order_of_their_names() {
    let spec = class(json!({"templateSelectorTerms": [{"osType": "Ubuntu 24.04"}]}));
    let template = |id: &str, name: &str| {
        json!({"id": id, "name": name, "isready": true, "hypervisor": "KVM", "created": "2026-01-01T00:00:00+0000",
            "zoneid": "z1", "ostypename": "Ubuntu 24.04"})
    };
    let listed = of(json!([
        template("t-1", "b"),
        template("t-3", "a"),
        template("t-2", "a")
    ]));
    let lists = Lists {
        templates: [("z1".to_owned(), listed)].into(),
        ..lists()
    };
    let zones = zones(&spec, &lists.zones, &mut BTreeMap::new());
    let found = resolve(&spec, zones, &lists, BTreeMap::new());
    let ids: Vec<&str> = found.zones[0]
        .templates
        .iter()
        .map(|own| own.template.id.as_str())
        .collect();
    assert_eq!(ids, ["t-2", "t-3", "t-1"]);
}

#[test]
fn a_managed_group_is_of_the_lenient_kind_where_the_server_has_it() {
    let kind = |managed: Value, known: Value| {
        let spec = class(json!({"affinityGroups": {"managed": managed}}));
        let lists = Lists {
            affinity_types: of(known),
            ..lists()
        };
        let zones = zones(&spec, &lists.zones, &mut BTreeMap::new());
        let found = resolve(&spec, zones, &lists, BTreeMap::new());
        (found.managed_affinity_type, found.is_usable())
    };
    let (lenient, strict) = ("non-strict host anti-affinity", "host anti-affinity");
    let both = json!([{"type": lenient}, {"type": strict}]);
    let old = json!([{"type": strict}]);
    assert_eq!(kind(json!({}), both), (Some(lenient), true));
    assert_eq!(kind(json!({}), old.clone()), (Some(strict), true));
    assert_eq!(
        kind(json!({}), json!([])),
        (Some(lenient), true),
        "the role may not ask"
    );
    assert_eq!(
        kind(json!({"type": lenient}), old),
        (Some(lenient), false),
        "asked for, so it is told"
    );
}
