//! The cluster's CA as kubeadm pins it: the SHA-256 of the certificate's public key.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The CA of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterCa {
    /// The PEM bundle, in base64.
    pub base64: String,
    /// `sha256:<hex>`, for `--discovery-token-ca-cert-hash`.
    pub hash: String,
}

impl ClusterCa {
    /// Reads the kubeconfig of the ConfigMap `kube-public/cluster-info`.
    pub fn of_cluster_info(kubeconfig: &str) -> Option<Self> {
        let config: Value = serde_norway::from_str(kubeconfig).ok()?;
        let base64 = config["clusters"][0]["cluster"]["certificate-authority-data"]
            .as_str()?
            .to_owned();
        let pem = String::from_utf8(STANDARD.decode(&base64).ok()?).ok()?;
        let der = first_certificate(&pem)?;
        let key = public_key(&der)?;
        let hex: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self {
            base64,
            hash: format!("sha256:{hex}"),
        })
    }
}

fn first_certificate(pem: &str) -> Option<Vec<u8>> {
    let body = pem.split("-----BEGIN CERTIFICATE-----").nth(1)?;
    let body = body.split("-----END CERTIFICATE-----").next()?;
    let compact: String = body.split_whitespace().collect();
    STANDARD.decode(compact).ok()
}

/// The SubjectPublicKeyInfo of an X.509 certificate, with its header.
fn public_key(certificate: &[u8]) -> Option<&[u8]> {
    const VERSION: u8 = 0xa0;
    let outer = Element::read(certificate)?;
    let body = Element::read(outer.content)?;
    let mut rest = body.content;
    let mut next = || {
        let element = Element::read(rest)?;
        rest = &rest[element.whole.len()..];
        Some(element)
    };
    let first = next()?;
    // Serial number, signature algorithm, issuer, validity, subject; the version before them is optional.
    let skip = if first.tag == VERSION { 5 } else { 4 };
    for _ in 0..skip {
        next()?;
    }
    next().map(|key| key.whole)
}

/// One element of DER.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    whole: &'a [u8],
}

impl<'a> Element<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (tag, first) = (*bytes.first()?, *bytes.get(1)?);
        let (length, header) = if first < 0x80 {
            (usize::from(first), 2)
        } else {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 4 {
                return None;
            }
            let digits = bytes.get(2..2 + count)?;
            let length = digits.iter().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte));
            (length, 2 + count)
        };
        let end = header.checked_add(length)?;
        Some(Self {
            tag,
            content: bytes.get(header..end)?,
            whole: bytes.get(..end)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut element = vec![tag, u8::try_from(content.len()).expect("short")];
        element.extend_from_slice(content);
        element
    }

    #[test]
    fn the_public_key_is_found_behind_the_other_fields() {
        let key = der(0x30, &[1, 2, 3]);
        let fields: Vec<Vec<u8>> = vec![
            der(0xa0, &[2]),
            der(0x02, &[9]),
            der(0x30, &[]),
            der(0x30, &[1]),
            der(0x30, &[2]),
            der(0x30, &[3]),
            key.clone(),
        ];
        let certificate = der(0x30, &der(0x30, &fields.concat()));
        assert_eq!(public_key(&certificate), Some(&key[..]));
        let without_version = der(0x30, &der(0x30, &fields[1..].concat()));
        assert_eq!(public_key(&without_version), Some(&key[..]));
        assert_eq!(public_key(&[0x30, 0x82, 0xff]), None, "cut short");
    }

    #[test]
    fn the_ca_comes_from_cluster_info() {
        let key = der(0x30, &[1, 2, 3]);
        let fields = [
            der(2, &[9]),
            der(0x30, &[]),
            der(0x30, &[]),
            der(0x30, &[]),
            der(0x30, &[]),
            key,
        ];
        let certificate = STANDARD.encode(der(0x30, &der(0x30, &fields.concat())));
        let pem = format!("-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n");
        let data = STANDARD.encode(pem);
        let kubeconfig = format!("clusters: [{{cluster: {{certificate-authority-data: {data}}}}}]");
        let ca = ClusterCa::of_cluster_info(&kubeconfig).expect("a CA");
        assert_eq!(ca.base64, data);
        assert!(ca.hash.starts_with("sha256:") && ca.hash.len() == 71);
        assert_eq!(ClusterCa::of_cluster_info("clusters: []"), None);
    }
}
