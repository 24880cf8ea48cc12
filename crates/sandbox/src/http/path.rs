//! What a request's path names.

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Root,
    Version,
    Health,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/{group}`
    Group(String),
    /// `/api/v1` or `/apis/{group}/{version}`
    Resources {
        group: String,
        version: String,
    },
    OpenApiIndex,
    /// `/openapi/v3/{path}`
    OpenApi(String),
    OpenApiV2,
    Objects(ObjectPath),
    Unknown,
}

/// A collection, an object or a subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectPath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// An old `/watch/` path.
    pub(crate) watch: bool,
}

impl Target {
    pub(crate) fn parse(path: &str) -> Self {
        if path.contains("//") {
            return Target::Unknown;
        }
        let decoded: Vec<String> = path
            .trim_matches('/')
            .split('/')
            .map(|part| {
                percent_encoding::percent_decode_str(part)
                    .decode_utf8_lossy()
                    .into_owned()
            })
            .collect();
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        match parts.as_slice() {
            [""] => Target::Root,
            ["version"] => Target::Version,
            ["healthz" | "livez" | "readyz", ..] => Target::Health,
            ["api"] => Target::CoreVersions,
            ["apis"] => Target::Groups,
            ["openapi", "v2"] => Target::OpenApiV2,
            ["openapi", "v3"] => Target::OpenApiIndex,
            ["openapi", "v3", rest @ ..] => Target::OpenApi(rest.join("/")),
            ["api", version] => Target::Resources {
                group: String::new(),
                version: (*version).into(),
            },
            ["apis", group] => Target::Group((*group).into()),
            ["apis", group, version] => Target::Resources {
                group: (*group).into(),
                version: (*version).into(),
            },
            ["api", version, rest @ ..] => objects("", version, rest),
            ["apis", group, version, rest @ ..] => objects(group, version, rest),
            _ => Target::Unknown,
        }
    }
}

fn objects(group: &str, version: &str, parts: &[&str]) -> Target {
    let (watch, parts) = match parts {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        parts => (false, parts),
    };
    let base = ObjectPath {
        group: group.into(),
        version: version.into(),
        watch,
        ..ObjectPath::default()
    };
    let text = |part: &&str| Some((*part).to_owned());
    let path = match parts {
        // A namespace's own subresources look like collections inside it.
        ["namespaces", name, sub @ ("status" | "finalize")] if group.is_empty() => ObjectPath {
            plural: "namespaces".into(),
            name: text(name),
            subresource: text(sub),
            ..base
        },
        ["namespaces", name] if group.is_empty() => ObjectPath {
            plural: "namespaces".into(),
            name: text(name),
            ..base
        },
        ["namespaces", namespace, plural] => ObjectPath {
            namespace: text(namespace),
            plural: (*plural).into(),
            ..base
        },
        ["namespaces", namespace, plural, name] => ObjectPath {
            namespace: text(namespace),
            plural: (*plural).into(),
            name: text(name),
            ..base
        },
        ["namespaces", namespace, plural, name, sub @ ..] => ObjectPath {
            namespace: text(namespace),
            plural: (*plural).into(),
            name: text(name),
            subresource: Some(sub.join("/")),
            ..base
        },
        [plural] => ObjectPath {
            plural: (*plural).into(),
            ..base
        },
        [plural, name] => ObjectPath {
            plural: (*plural).into(),
            name: text(name),
            ..base
        },
        [plural, name, sub @ ..] => ObjectPath {
            plural: (*plural).into(),
            name: text(name),
            subresource: Some(sub.join("/")),
            ..base
        },
        [] => return Target::Unknown,
    };
    Target::Objects(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ObjectPath {
        match Target::parse(text) {
            Target::Objects(path) => path,
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn objects_are_found_by_their_path() {
        let pod = path("/api/v1/namespaces/default/pods/a/eviction");
        assert_eq!(pod.namespace.as_deref(), Some("default"));
        assert_eq!((pod.plural.as_str(), pod.name.as_deref()), ("pods", Some("a")));
        assert_eq!(pod.subresource.as_deref(), Some("eviction"));
        let namespace = path("/api/v1/namespaces/a/finalize");
        assert_eq!(
            (namespace.plural.as_str(), namespace.name.as_deref()),
            ("namespaces", Some("a"))
        );
        assert_eq!(path("/apis/karpenter.sh/v1/nodepools/").plural, "nodepools");
        assert!(path("/api/v1/watch/pods").watch);
    }

    #[test]
    fn a_doubled_slash_is_nowhere() {
        assert_eq!(Target::parse("/api/v1//pods"), Target::Unknown);
        assert_eq!(Target::parse("/"), Target::Root);
    }
}
