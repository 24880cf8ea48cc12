//! Names, labels and counts of the metrics.

use super::*;

#[test]
fn every_metric_can_be_registered_once() {
    let registry = Registry::new();
    let metrics = Metrics::new();
    metrics.register(&registry).expect("new names");
    assert!(metrics.register(&registry).is_err());
}

#[test]
fn a_launch_counts_once_with_its_labels() {
    let registry = Registry::new();
    let metrics = Metrics::new();
    metrics.register(&registry).expect("new names");
    metrics.created("nix.4c_8g", "HN1", "on-demand", 40.0);
    let families = registry.gather();
    let family = families
        .iter()
        .find(|family| family.name() == "karpenter_bizflycloud_instances_created_total")
        .expect("counted");
    let metric = &family.get_metric()[0];
    assert_eq!(metric.get_counter().get_value(), 1.0);
    assert!(metric.get_label().iter().all(|label| !label.value().is_empty()));
}

#[test]
fn every_metric_has_the_name_and_labels_that_dashboards_know() {
    let expected = [
        ("instance_creation_duration_seconds", ""),
        ("instance_deletion_duration_seconds", ""),
        ("instances_created_total", "instance_type, zone, capacity_type"),
        ("instances_deleted_total", "instance_type, zone, reason"),
        ("drift_check_duration_seconds", ""),
        ("drift_detected_total", "node_name, drift_reason"),
        ("api_call_duration_seconds", "operation, service"),
        ("api_errors_total", "operation, service, error_type"),
        ("node_consolidation_events_total", ""),
        ("node_termination_duration_seconds", ""),
        ("underutilized_nodes", ""),
        ("node_capacity", "node_name, resource_type"),
        ("node_utilization", "node_name, resource_type"),
        ("instance_types_available", "region, zone"),
        ("instance_type_price", "instance_type, spot"),
        ("instance_type_selections_total", "instance_type, spot"),
        ("drifted_nodes_total", ""),
        ("drift_remediations_total", ""),
        ("drift_remediation_errors_total", ""),
        ("drift_remediation_duration_seconds", ""),
        ("offering_available", "instance_type, zone, billing_plan, disk_type"),
        ("unavailable_offerings", "zone, reason"),
        ("token_refreshes_total", "result"),
        ("token_expiry_seconds", "provider_config"),
        ("task_duration_seconds", "action, result"),
        ("orphans_total", "kind"),
        ("catalog_stale_seconds", "catalog"),
        ("quota_blocked", "region, plan"),
        (
            "node_cost_hourly",
            "nodepool, instance_type, zone, billing_plan, currency",
        ),
        ("nodepool_cost_hourly", "nodepool, currency"),
        ("nodepool_cost_month_to_date", "nodepool, currency"),
        ("savings_potential_hourly", "nodepool, kind, currency"),
        ("account_balance", "provider_config, currency"),
        ("billing_ready", "provider_config, currency"),
    ];
    let expected: BTreeMap<String, String> = expected
        .into_iter()
        .map(|(name, labels)| (format!("karpenter_bizflycloud_{name}"), labels.to_owned()))
        .collect();
    let collectors = Metrics::new().collectors();
    let found: BTreeMap<String, String> = collectors
        .iter()
        .flat_map(|own| own.desc())
        .map(|desc| (desc.fq_name.clone(), desc.variable_labels.join(", ")))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn durations_are_counted_in_the_buckets_that_dashboards_know() {
    let registry = Registry::new();
    let metrics = Metrics::new();
    metrics.register(&registry).expect("new names");
    metrics.created("nix.4c_8g", "HN1", "on-demand", 40.0);
    metrics.drift_checked(0.1);
    let bounds = |name: &str| -> Vec<f64> {
        let families = registry.gather();
        let family = families.iter().find(|family| family.name().ends_with(name));
        let metric = family.expect("written").get_metric()[0].clone();
        metric
            .get_histogram()
            .get_bucket()
            .iter()
            .map(|own| own.upper_bound())
            .collect()
    };
    let slow = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
    assert_eq!(bounds("instance_creation_duration_seconds"), slow);
    assert_eq!(bounds("drift_check_duration_seconds"), slow.map(|bound| bound / 10.0));
}

#[test]
fn what_one_class_may_not_have_is_still_for_sale_to_another() {
    use karpenter_api::{Requirement, Requirements, labels};
    use karpenter_cloud::{InstanceType, Offering, OfferingOverrides, Overhead};

    let type_of = |available: bool, price: f64| -> InstanceTypes {
        let mut requirements = Requirements::new();
        for (key, value) in [
            (labels::ZONE, "HN1"),
            (labels::CAPACITY_TYPE, "on-demand"),
            (crate::labels::BILLING_PLAN, "on_demand"),
            (crate::labels::DISK_TYPE, "SSD"),
        ] {
            requirements.add(Requirement::within(key, [value]));
        }
        let offering = Offering {
            requirements,
            price,
            available,
            reservation_capacity: 0,
            overrides: OfferingOverrides::default(),
            price_overlaid: false,
        };
        let own = InstanceType {
            name: "nix.4c_8g".to_owned(),
            requirements: Requirements::new(),
            offerings: vec![offering],
            capacity: Default::default(),
            overhead: Overhead::default(),
            volume_limits: BTreeMap::new(),
            capacity_overlaid: false,
        };
        Arc::from([Arc::new(own)])
    };
    let metrics = Metrics::new();
    let region = || "HN".to_owned();
    metrics.offers(&[
        (region(), type_of(true, 5.0)),
        (region(), type_of(false, 1.0)),
        (region(), type_of(true, 7.0)),
    ]);
    let own = &*metrics.0;
    let series = ["nix.4c_8g", "HN1", "on_demand", "SSD"];
    assert_eq!(own.offering_available.with_label_values(&series).get(), 1);
    assert_eq!(
        own.types_available.with_label_values(&["HN", "HN1"]).get(),
        1,
        "one flavor, however many classes"
    );
    assert_eq!(own.type_price.with_label_values(&["nix.4c_8g", "false"]).get(), 5.0);
}

#[test]
fn refusals_that_nobody_reads_are_counted_by_their_status() {
    let answered = |operation: &str, status: u16| {
        let status = StatusCode::from_u16(status).expect("a status");
        error_type(operation, Ending::Answered(status))
    };
    for operation in UNREAD {
        let expected = [
            (200, None),
            (400, Some("invalid")),
            (401, Some("auth")),
            (403, Some("auth")),
            (404, Some("not_found")),
            (409, Some("conflict")),
            (429, Some("rate_limited")),
            (502, Some("server_error")),
        ];
        for (status, class) in expected {
            assert_eq!(answered(operation, status), class, "{operation} {status}");
        }
    }
    for status in [400, 403, 409] {
        assert_eq!(answered("create_server", status), None, "its text is read: {status}");
    }
}
