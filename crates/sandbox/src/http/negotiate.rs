//! In which form the client wants its answer.

use crate::status::ApiError;

/// How objects are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Object,
    /// kubectl's tables.
    Table,
    /// PartialObjectMetadata.
    Metadata,
    /// Aggregated discovery.
    Discovery,
}

/// The encoding of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) view: View,
    pub(crate) encoding: Encoding,
}

/// Picks the first clause of an `Accept` header that can be served.
pub(crate) fn accept(header: &str) -> Result<Accepted, ApiError> {
    if header.trim().is_empty() {
        return Ok(Accepted {
            view: View::Object,
            encoding: Encoding::Json,
        });
    }
    let mut unknown_transform = false;
    for clause in header.split(',') {
        match parse_clause(clause) {
            Clause::Served(accepted) => return Ok(accepted),
            Clause::UnknownTransform => unknown_transform = true,
            Clause::Other => {}
        }
    }
    let message = if unknown_transform {
        "only the following media types are accepted: application/json, application/yaml"
    } else {
        "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml"
    };
    Err(ApiError::new(406, "NotAcceptable", message))
}

enum Clause {
    Served(Accepted),
    UnknownTransform,
    Other,
}

fn parse_clause(clause: &str) -> Clause {
    let mut parts = clause.split(';').map(str::trim);
    let encoding = match parts.next() {
        Some("application/json" | "*/*" | "application/*") => Encoding::Json,
        Some("application/yaml") => Encoding::Yaml,
        _ => return Clause::Other,
    };
    let (mut kind, mut group, mut version) = ("", "", "");
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    let view = match (kind, group, version) {
        ("", ..) => View::Object,
        ("Table", "meta.k8s.io", "v1" | "v1beta1") => View::Table,
        ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => View::Metadata,
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => View::Discovery,
        // Older discovery clients offer v2beta1 as well; they get the legacy form.
        ("APIGroupDiscoveryList", ..) => return Clause::Other,
        _ => return Clause::UnknownTransform,
    };
    Clause::Served(Accepted { view, encoding })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(header: &str) -> View {
        accept(header).unwrap().view
    }

    #[test]
    fn the_first_clause_that_can_be_served_wins() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(view(kubectl), View::Table);
        assert_eq!(
            view("application/vnd.kubernetes.protobuf,application/json"),
            View::Object
        );
        assert_eq!(
            view("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"),
            View::Metadata
        );
        assert_eq!(view(""), View::Object);
    }

    #[test]
    fn nothing_acceptable_is_a_406() {
        assert_eq!(accept("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
        let error = accept("application/json;as=Table;v=v7;g=meta.k8s.io").unwrap_err();
        assert!(error.message.starts_with("only the following media types"));
    }
}
