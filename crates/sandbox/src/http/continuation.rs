//! The opaque token with which a paged list goes on.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::status::ApiError;

/// Where a paged list stopped, and at which revision it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continuation {
    /// 0 means: at whatever revision the next page finds.
    pub(crate) revision: u64,
    /// The last key that was sent.
    pub(crate) after: String,
}

impl Continuation {
    pub(crate) fn encode(&self) -> String {
        let start = format!("/{}\u{0}", self.after);
        URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": start}).to_string())
    }

    pub(crate) fn decode(token: &str) -> Result<Self, ApiError> {
        let invalid = || ApiError::bad_request("continue key is not valid: the token is malformed");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let start = value["start"].as_str().ok_or_else(invalid)?;
        let after = start
            .strip_prefix('/')
            .and_then(|start| start.strip_suffix('\u{0}'))
            .ok_or_else(invalid)?;
        if value["v"] != "meta.k8s.io/v1" {
            return Err(invalid());
        }
        // Negative means "whatever is newest", as after an expired token.
        Ok(Self {
            revision: value["rv"].as_u64().unwrap_or(0),
            after: after.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_round_trip_and_garbage_does_not() {
        let token = Continuation {
            revision: 7,
            after: "default/a".into(),
        };
        assert_eq!(Continuation::decode(&token.encode()).unwrap(), token);
        for garbage in ["", "x", "eyJ2IjoxfQ", "%%%"] {
            assert_eq!(Continuation::decode(garbage).unwrap_err().code, 400, "{garbage}");
        }
    }
}
