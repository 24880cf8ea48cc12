//! The cluster itself: its version, its clock, and the CRDs in it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karpenter_api::crd::Crd;
use karpenter_cloud::Diagnosis;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::Value;

use super::Report;
use crate::providers::Provider;

/// The oldest Kubernetes whose API server carries out the rules of our CRDs.
const OLDEST: (u32, u32) = (1, 29);

/// Clocks that are further apart make signatures and certificates fail; see [`clock`].
const SUSPICIOUS: SignedDuration = SignedDuration::from_secs(10);
const BROKEN: SignedDuration = SignedDuration::from_secs(300);

/// Whether the API server answers, and which version it is.
pub(super) async fn version(client: &Client, report: &mut Report) -> Result<(), kube::Error> {
    let version = client.apiserver_version().await?;
    let number = |text: &str| text.trim_end_matches('+').parse::<u32>().unwrap_or_default();
    let found = (number(&version.major), number(&version.minor));
    let text = format!("Kubernetes {}", version.git_version);
    report.add(if found < OLDEST {
        let (major, minor) = OLDEST;
        Diagnosis::warn(
            "cluster",
            format!("{text} is older than {major}.{minor}"),
            "upgrade it; older versions are not tested",
        )
    } else {
        Diagnosis::ok("cluster", text)
    });
    Ok(())
}

/// How far this machine's clock is from the API server's, by the `Date` of an answer.
pub(super) async fn clock(client: &Client, report: &mut Report) {
    let request = http::Request::get("/version")
        .body(Body::empty())
        .expect("a constant path");
    let answer = match client.send(request).await {
        Ok(answer) => answer,
        Err(error) => {
            report.add(Diagnosis::warn(
                "clock",
                format!("can't be compared: {error}"),
                "run again",
            ));
            return;
        }
    };
    let date = answer
        .headers()
        .get(http::header::DATE)
        .and_then(|date| date.to_str().ok());
    let theirs = date.and_then(|date| jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok());
    report.add(match theirs {
        Some(theirs) => skew(Timestamp::now().duration_since(theirs)),
        None => Diagnosis::warn(
            "clock",
            "the API server sends no date to compare with",
            "compare the clocks yourself",
        ),
    });
}

fn skew(apart: SignedDuration) -> Diagnosis {
    let seconds = apart.as_secs().unsigned_abs();
    let sentence = format!("this machine and the API server are {seconds} s apart");
    let remedy = "synchronise the clocks: signed requests and certificates depend on them";
    match apart.abs() {
        apart if apart > BROKEN => Diagnosis::fail("clock", sentence, remedy),
        apart if apart > SUSPICIOUS => Diagnosis::warn("clock", sentence, remedy),
        _ => Diagnosis::ok("clock", sentence),
    }
}

/// Whether every CRD is there, served, and the one that this binary knows.
pub(super) async fn crds(client: &Client, provider: Option<Provider>, report: &mut Report) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let expected = Provider::crds(provider);
    let remedy = "run: karpenter crds | kubectl apply --server-side -f -";
    let mut current = 0;
    for crd in &expected {
        let subject = "crds";
        match api.get_opt(crd.name()).await {
            Err(error) => report.add(Diagnosis::fail(subject, format!("{}: {error}", crd.name()), remedy)),
            Ok(None) => report.add(Diagnosis::fail(
                subject,
                format!("{} is not installed", crd.name()),
                remedy,
            )),
            Ok(Some(installed)) if !is_established(&installed) => report.add(Diagnosis::fail(
                subject,
                format!("{} is installed but not served", crd.name()),
                "look at its conditions with kubectl describe crd",
            )),
            Ok(Some(installed)) => match difference(crd, &installed) {
                None => current += 1,
                Some(path) => report.add(Diagnosis::warn(
                    subject,
                    format!("{} is not that of this version: {path} differs", crd.name()),
                    remedy,
                )),
            },
        }
    }
    if current == expected.len() {
        report.add(Diagnosis::ok(
            "crds",
            format!("all {current} are installed and current"),
        ));
    }
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// The first path at which an installed CRD lacks something of ours; what the API server adds does not count.
fn difference(crd: &Crd, installed: &CustomResourceDefinition) -> Option<String> {
    let installed = serde_json::to_value(installed).expect("a CRD is plain data");
    missing("spec", &crd.as_value()["spec"], &installed["spec"])
}

fn missing(path: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => ours
            .iter()
            .find_map(|(key, value)| missing(&format!("{path}.{key}"), value, theirs.get(key).unwrap_or(&Value::Null))),
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => ours
            .iter()
            .zip(theirs)
            .enumerate()
            .find_map(|(index, (ours, theirs))| missing(&format!("{path}[{index}]"), ours, theirs)),
        // Servers leave out what is empty or false.
        (ours, Value::Null) if is_nothing(ours) => None,
        // 1 and 1.0 are the same bound.
        (Value::Number(ours), Value::Number(theirs)) if ours.as_f64() == theirs.as_f64() => None,
        (ours, theirs) if ours == theirs => None,
        _ => Some(path.to_owned()),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::Verdict;
    use serde_json::json;

    use super::*;

    #[test]
    fn clocks_may_differ_by_seconds_but_not_by_minutes() {
        let verdict = |seconds| skew(SignedDuration::from_secs(seconds)).verdict;
        assert_eq!(
            [verdict(0), verdict(-10), verdict(11)],
            [Verdict::Ok, Verdict::Ok, Verdict::Warn]
        );
        assert_eq!([verdict(-300), verdict(301)], [Verdict::Warn, Verdict::Fail]);
    }

    #[test]
    fn a_server_may_add_to_a_crd_but_not_change_it() {
        let ours =
            json!({"names": {"kind": "A"}, "versions": [{"schema": {"maximum": 5}, "served": true}], "flag": false});
        let mut theirs = ours.clone();
        theirs["conversion"] = json!({"strategy": "None"});
        theirs["versions"][0]["schema"]["maximum"] = json!(5.0);
        theirs.as_object_mut().unwrap().remove("flag");
        assert_eq!(missing("spec", &ours, &theirs), None);
        theirs["versions"][0]["schema"]["maximum"] = json!(6);
        assert_eq!(
            missing("spec", &ours, &theirs).as_deref(),
            Some("spec.versions[0].schema.maximum")
        );
        theirs["versions"] = json!([]);
        assert_eq!(missing("spec", &ours, &theirs).as_deref(), Some("spec.versions"));
    }
}
