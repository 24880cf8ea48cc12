//! Every rule of the provider's CRD accepts and rejects what it should, as a real API server is asked in the end-to-end tier.

use karpenter_api::acceptance::{Verdict, cases_of};
use karpenter_sandbox::crd::Definition;

#[test]
fn the_crd_admits_what_it_should() {
    let crds = karpenter_ovhcloud::node_class::crds();
    let definition = Definition::parse(crds[0].as_value()).expect("a CRD");
    let schema = &definition.versions[0].schema;
    let cases = cases_of("ovhnodeclass", include_str!("../testdata/acceptance/ovhnodeclass.yaml"));
    for case in cases {
        let verdict = schema.admit(&mut case.object.clone(), None);
        let expected = case.verdict != Verdict::Rejected;
        assert_eq!(verdict.is_ok(), expected, "{}: {} {verdict:?}", case.rule, case.object);
    }
}
