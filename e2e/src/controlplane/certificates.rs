//! One certificate authority, a serving certificate and a client certificate for each part of the control plane.

use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

/// Who may talk to the API server: the name of the kubeconfig, the user and the group of its certificate.
#[derive(Debug)]
pub(super) struct User {
    pub(super) name: &'static str,
    common_name: &'static str,
    group: Option<&'static str>,
}

pub(super) const USERS: [User; 4] = [
    User {
        name: "admin",
        common_name: "admin",
        group: Some("system:masters"),
    },
    User {
        name: "kcm",
        common_name: "system:kube-controller-manager",
        group: None,
    },
    User {
        name: "scheduler",
        common_name: "system:kube-scheduler",
        group: None,
    },
    User {
        name: "kwok",
        common_name: "kwok",
        group: Some("system:masters"),
    },
];

/// The PEM texts; the API server reads its own from files, users read theirs from kubeconfigs.
#[derive(Debug)]
pub(super) struct Certificates {
    ca: String,
    clients: Vec<(&'static str, String, String)>,
}

// === impl Certificates ===

impl Certificates {
    /// Makes everything anew and writes what the API server needs below `dir`.
    pub(super) fn write(dir: &Path) -> Result<Self> {
        let ca_key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "karpenter-e2e");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = params.self_signed(&ca_key)?.pem();
        let issuer = Issuer::new(params, ca_key);

        let names = [
            "127.0.0.1",
            "10.96.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ];
        let mut serving = CertificateParams::new(names.map(str::to_owned).to_vec())?;
        serving.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let serving_key = KeyPair::generate()?;
        let serving = serving.signed_by(&serving_key, &issuer)?;

        let mut clients = Vec::new();
        for user in &USERS {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, user.common_name);
            if let Some(group) = user.group {
                params.distinguished_name.push(DnType::OrganizationName, group);
            }
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate()?;
            clients.push((user.name, params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()));
        }

        let accounts = KeyPair::generate()?;
        let files = [
            ("ca.crt", ca.clone()),
            ("apiserver.crt", serving.pem()),
            ("apiserver.key", serving_key.serialize_pem()),
            ("sa.key", accounts.serialize_pem()),
            ("sa.pub", accounts.public_key_pem()),
        ];
        for (name, text) in files {
            std::fs::write(dir.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        Ok(Self { ca, clients })
    }

    pub(super) fn kubeconfig(&self, user: &str, server: &str) -> Result<String> {
        let (_, certificate, key) = self
            .clients
            .iter()
            .find(|(name, ..)| *name == user)
            .context("no certificate for that user")?;
        let credentials = json!({
            "client-certificate-data": base64(certificate),
            "client-key-data": base64(key),
        });
        Ok(self.document(server, &credentials))
    }

    pub(super) fn token_kubeconfig(&self, token: &str, server: &str) -> String {
        self.document(server, &json!({ "token": token }))
    }

    fn document(&self, server: &str, credentials: &serde_json::Value) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "clusters": [{ "name": "e2e", "cluster": { "server": server, "certificate-authority-data": base64(&self.ca) } }],
            "users": [{ "name": "e2e", "user": credentials }],
            "contexts": [{ "name": "e2e", "context": { "cluster": "e2e", "user": "e2e" } }],
        })
        .to_string()
    }
}

fn base64(text: &str) -> String {
    // ByteString's JSON form is base64, which saves a dependency.
    let bytes = k8s_openapi::ByteString(text.as_bytes().to_vec());
    serde_json::to_value(bytes)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}
