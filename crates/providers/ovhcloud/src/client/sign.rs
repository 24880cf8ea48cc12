//! The signature that OVHcloud wants on every call made with application keys.

use sha1::{Digest, Sha1};

/// `$1$` and the SHA-1 of secret, consumer key, method, URL, body and timestamp, joined by plus signs.
///
/// URL and body are the exact bytes that are sent: whoever signs must not let anything re-encode them afterwards.
pub fn signature(
    application_secret: &str,
    consumer_key: &str,
    method: &str,
    url: &str,
    body: &[u8],
    timestamp: i64,
) -> String {
    let mut hash = Sha1::new();
    for part in [application_secret, consumer_key, method, url] {
        hash.update(part.as_bytes());
        hash.update(b"+");
    }
    hash.update(body);
    hash.update(b"+");
    hash.update(timestamp.to_string().as_bytes());
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("$1${hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "9ufkBmLaTQ9nz5yMUlg79taH0GNnzDjk";
    const CONSUMER: &str = "5mBuy6SUQcRw2ZUxg0cG68BoDKpED4KY";
    const BODY: &str = r#"{"a":"b","c":"d"}"#;

    fn sign(method: &str, url: &str, body: &str) -> String {
        signature(SECRET, CONSUMER, method, url, body.as_bytes(), 1_457_018_875)
    }

    #[test]
    fn signatures_agree_with_those_of_ovhs_own_clients() {
        let auth = "https://eu.api.ovh.com/1.0/auth";
        let vectors = [
            ("GET", auth, "", "e9556054b6309771395efa467c22e627407461ad"),
            ("POST", auth, BODY, "ec2fb5c7a81f64723c77d2e5b609ae6f58a84fc1"),
            ("PUT", auth, BODY, "8a75a9e7c8e7296c9dbeda6a2a735eb6bd58ec4b"),
            ("DELETE", auth, "", "a1eecd00b3b02b6cf5708b84b9ff42059a950d85"),
            (
                "GET",
                "https://eu.api.ovh.com/1.0/call",
                "",
                "7f2db49253edfc41891023fcd1a54cf61db05fbb",
            ),
            (
                "GET",
                "https://eu.api.ovh.com/v1/call",
                "",
                "e6e7906d385eb28adcbfbe6b66c1528a42d741ad",
            ),
            (
                "GET",
                "https://eu.api.ovh.com/v2/call",
                "",
                "bb63b132a6f84ad5433d0c534d48d3f7c3804285",
            ),
        ];
        for (method, url, body, hex) in vectors {
            assert_eq!(sign(method, url, body), format!("$1${hex}"), "{method} {url}");
        }
    }

    /// The file says how its signatures were computed, which is not with this crate.
    #[test]
    fn signatures_agree_with_independently_computed_ones() {
        #[derive(serde::Deserialize)]
        struct Fixture {
            secret: String,
            consumer: String,
            vectors: Vec<Vector>,
        }
        #[derive(serde::Deserialize)]
        struct Vector {
            method: String,
            url: String,
            body: String,
            timestamp: i64,
            signature: String,
        }
        let fixture: Fixture =
            serde_json::from_str(include_str!("../../testdata/signatures.json")).expect("the fixture");
        assert!(fixture.vectors.len() >= 12);
        for own in fixture.vectors {
            let computed = signature(
                &fixture.secret,
                &fixture.consumer,
                &own.method,
                &own.url,
                own.body.as_bytes(),
                own.timestamp,
            );
            assert_eq!(computed, own.signature, "{} {}", own.method, own.url);
        }
    }

    #[test]
    fn query_and_body_are_part_of_what_is_signed() {
        assert_eq!(
            sign(
                "GET",
                "https://eu.api.ovh.com/1.0/cloud/project/abc/capabilities/kube/flavors?region=EU-WEST-PAR",
                ""
            ),
            "$1$4bc17efbfb5b87a93d6005aab44f7ea7ea6c1aad"
        );
        let pool = "https://eu.api.ovh.com/1.0/cloud/project/p/kube/k/nodepool/n";
        let sent = r#"{"desiredNodes":2,"nodesToRemove":["openstack:///1"]}"#;
        assert_eq!(sign("PUT", pool, sent), "$1$b0268632e6ac4597f7a9e78c7c923b569e63a998");
        let respaced = r#"{"desiredNodes": 2, "nodesToRemove": ["openstack:///1"]}"#;
        assert_ne!(sign("PUT", pool, respaced), sign("PUT", pool, sent));
    }
}
