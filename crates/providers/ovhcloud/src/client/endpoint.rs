//! Which OVHcloud API to talk to, and how its URLs are made.

use std::net::IpAddr;

use thiserror::Error;
use url::{Host, Url};

/// One of OVHcloud's APIs, or a URL that stands in for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiEndpoint {
    /// Without a trailing slash, e.g. `https://eu.api.ovh.com/1.0`.
    base: String,
    token_url: Option<String>,
    subsidiary: &'static str,
}

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    #[error("endpoint {given:?} has no Public Cloud; valid names are ovh-eu, ovh-ca and ovh-us, or give a base URL")]
    Unknown { given: String },
    #[error("endpoint {given:?} must not end with a slash; use {corrected:?}")]
    TrailingSlash { given: String, corrected: String },
    #[error("endpoint {given:?} is not a URL: {reason}")]
    NotAUrl { given: String, reason: String },
    #[error(
        "endpoint {given:?} would send keys over plain HTTP; use https (http is for loopback and cluster addresses)"
    )]
    PlainHttp { given: String },
}

/// The names that `OVH_ENDPOINT` and `spec.endpoint` take: base URL, OAuth2 token URL, subsidiary of the price list.
const NAMED: [(&str, &str, &str, &str); 3] = [
    (
        "ovh-eu",
        "https://eu.api.ovh.com/1.0",
        "https://www.ovh.com/auth/oauth2/token",
        "FR",
    ),
    (
        "ovh-ca",
        "https://ca.api.ovh.com/1.0",
        "https://ca.ovh.com/auth/oauth2/token",
        "CA",
    ),
    (
        "ovh-us",
        "https://api.us.ovhcloud.com/1.0",
        "https://us.ovhcloud.com/auth/oauth2/token",
        "US",
    ),
];
const VERSION: &str = "/1.0";

impl ApiEndpoint {
    /// Reads a name or a base URL; `token_url` replaces the endpoint's own OAuth2 address.
    ///
    /// # Errors
    /// When it is neither, or would send keys in the clear.
    pub fn parse(given: &str, token_url: Option<&str>) -> Result<Self, EndpointError> {
        if let Some((_, base, token, subsidiary)) = NAMED.iter().find(|(name, ..)| *name == given) {
            return Ok(Self {
                base: (*base).to_owned(),
                token_url: Some(token_url.unwrap_or(token).to_owned()),
                subsidiary,
            });
        }
        if !given.contains('/') {
            return Err(EndpointError::Unknown {
                given: given.to_owned(),
            });
        }
        if given.ends_with('/') {
            return Err(EndpointError::TrailingSlash {
                given: given.to_owned(),
                corrected: given.trim_end_matches('/').to_owned(),
            });
        }
        let url = Url::parse(given).map_err(|error| EndpointError::NotAUrl {
            given: given.to_owned(),
            reason: error.to_string(),
        })?;
        if url.scheme() != "https" && !(url.scheme() == "http" && is_local(&url)) {
            return Err(EndpointError::PlainHttp {
                given: given.to_owned(),
            });
        }
        Ok(Self {
            base: given.to_owned(),
            token_url: token_url.map(str::to_owned),
            subsidiary: "FR",
        })
    }

    /// The absolute URL of a path; `/v1/…` and `/v2/…` replace the version that the base ends with.
    pub fn url(&self, path: &str) -> String {
        let is_versioned = path.starts_with("/v1/") || path.starts_with("/v2/");
        match self.base.strip_suffix(VERSION).filter(|_| is_versioned) {
            Some(root) => format!("{root}{path}"),
            None => format!("{}{path}", self.base),
        }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// Where OAuth2 tokens come from; a literal base URL has none of its own.
    pub fn token_url(&self) -> Option<&str> {
        self.token_url.as_deref()
    }

    /// Whose public catalogue has this endpoint's prices, unless configured otherwise.
    pub fn subsidiary(&self) -> &'static str {
        self.subsidiary
    }
}

/// Loopback, or a name that only the cluster's own DNS knows.
fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        Some(Host::Domain(name)) => {
            name == "localhost" || !name.contains('.') || name.ends_with(".svc") || name.ends_with(".cluster.local")
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(given: &str) -> String {
        ApiEndpoint::parse(given, None).expect_err("refused").to_string()
    }

    #[test]
    fn the_three_regions_have_their_hosts() {
        for (name, url) in [
            ("ovh-eu", "https://eu.api.ovh.com/1.0/auth/time"),
            ("ovh-ca", "https://ca.api.ovh.com/1.0/auth/time"),
            ("ovh-us", "https://api.us.ovhcloud.com/1.0/auth/time"),
        ] {
            let endpoint = ApiEndpoint::parse(name, None).expect("known");
            assert_eq!(endpoint.url("/auth/time"), url);
            assert!(endpoint.token_url().is_some());
        }
    }

    #[test]
    fn a_versioned_path_replaces_the_version_of_the_base() {
        let endpoint = ApiEndpoint::parse("ovh-eu", None).expect("known");
        assert_eq!(endpoint.url("/v2/call"), "https://eu.api.ovh.com/v2/call");
        assert_eq!(endpoint.url("/call"), "https://eu.api.ovh.com/1.0/call");
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_the_remedy() {
        assert!(refused("kimsufi-eu").contains("ovh-eu, ovh-ca and ovh-us"));
        assert!(refused("https://example.com/1.0/").contains(r#"use "https://example.com/1.0""#));
        assert!(refused("http://example.com/1.0").contains("use https"));
        assert!(refused("not/a url").contains("is not a URL"));
    }

    #[test]
    fn plain_http_is_for_loopback_and_the_cluster() {
        for local in [
            "http://127.0.0.1:8080/1.0",
            "http://[::1]:1/1.0",
            "http://proxy.karpenter.svc/1.0",
        ] {
            ApiEndpoint::parse(local, None).expect("local");
        }
    }
}
