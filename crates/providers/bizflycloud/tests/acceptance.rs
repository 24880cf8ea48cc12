//! Every rule of the provider's CRDs accepts and rejects what it should, as a real API server is asked in the end-to-end tier.

use std::collections::BTreeMap;

use karpenter_api::acceptance::{Verdict, cases_of};
use karpenter_sandbox::crd::Definition;

const FILES: [(&str, &str); 2] = [
    (
        "bizflycloudnodeclass",
        include_str!("../testdata/acceptance/bizflycloudnodeclass.yaml"),
    ),
    (
        "providerconfig",
        include_str!("../testdata/acceptance/providerconfig.yaml"),
    ),
];

#[test]
fn the_crds_admit_what_they_should() {
    let definitions: BTreeMap<String, Definition> = karpenter_bizflycloud::node_class::crds()
        .iter()
        .map(|crd| (crd.kind().to_owned(), Definition::parse(crd.as_value()).expect("a CRD")))
        .collect();
    for case in FILES.into_iter().flat_map(|(name, text)| cases_of(name, text)) {
        let kind = case.object["kind"].as_str().expect("a kind");
        let schema = &definitions[kind].versions[0].schema;
        let verdict = schema.admit(&mut case.object.clone(), None);
        let expected = case.verdict != Verdict::Rejected;
        assert_eq!(verdict.is_ok(), expected, "{}: {} {verdict:?}", case.rule, case.object);
    }
}
