//! The shapes that Kubernetes demands of names, label keys and label values.

const LONGEST_NAME: usize = 63;
const LONGEST_SUBDOMAIN: usize = 253;

/// Why a text does not have the shape that it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must not be empty")]
    Empty,
    #[error("must have at most one \"/\", between a DNS prefix and a name")]
    Slashes,
    #[error("has a prefix that is not a DNS subdomain; use lower-case letters, digits, \"-\" and \".\"")]
    Prefix,
    #[error("has a prefix longer than 253 characters")]
    LongPrefix,
    #[error("must be at most 63 characters after the prefix")]
    LongName,
    #[error("must consist of letters, digits, \"-\", \"_\" and \".\", and begin and end with a letter or digit")]
    Name,
    #[error("must be at most 63 characters")]
    LongValue,
    #[error("must be a DNS subdomain of at most 253 characters: lower-case letters, digits, \"-\" and \".\"")]
    Subdomain,
}

/// Checks a label, annotation or taint key: an optional DNS prefix with a slash, then a name.
pub fn check_qualified_name(text: &str) -> Result<(), NameError> {
    let name = match text.split_once('/') {
        Some((_, rest)) if rest.contains('/') => return Err(NameError::Slashes),
        Some((prefix, _)) if prefix.len() > LONGEST_SUBDOMAIN => return Err(NameError::LongPrefix),
        Some((prefix, _)) if !is_subdomain(prefix) => return Err(NameError::Prefix),
        Some((_, name)) => name,
        None => text,
    };
    match name {
        "" => Err(NameError::Empty),
        long if long.len() > LONGEST_NAME => Err(NameError::LongName),
        name if is_name(name) => Ok(()),
        _ => Err(NameError::Name),
    }
}

/// Checks a label value, which may be empty.
pub fn check_label_value(text: &str) -> Result<(), NameError> {
    match text {
        "" => Ok(()),
        long if long.len() > LONGEST_NAME => Err(NameError::LongValue),
        value if is_name(value) => Ok(()),
        _ => Err(NameError::Name),
    }
}

/// Checks the name of an object.
pub fn check_object_name(text: &str) -> Result<(), NameError> {
    match text {
        "" => Err(NameError::Empty),
        name if is_subdomain(name) => Ok(()),
        _ => Err(NameError::Subdomain),
    }
}

fn is_name(text: &str) -> bool {
    let ends_well = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    ends_well(bytes.first())
        && ends_well(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_subdomain(text: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = label.as_bytes();
        bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain)
            && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
    };
    text.len() <= LONGEST_SUBDOMAIN && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualified_names_are_told_from_others() {
        for good in ["a", "a.b/c", "A_b.C-d", "example.com/A"] {
            assert_eq!(check_qualified_name(good), Ok(()), "{good}");
        }
        let long = "a".repeat(64);
        for (bad, error) in [
            ("", NameError::Empty),
            ("a/", NameError::Empty),
            ("/a", NameError::Prefix),
            ("a/b/c", NameError::Slashes),
            ("Test.com/a", NameError::Prefix),
            ("a b", NameError::Name),
            ("-a", NameError::Name),
            (&long, NameError::LongName),
            (&format!("{}/a", "a".repeat(254)), NameError::LongPrefix),
        ] {
            assert_eq!(check_qualified_name(bad), Err(error), "{bad}");
        }
    }

    #[test]
    fn label_values_may_be_empty_and_have_63_characters_at_most() {
        assert_eq!(check_label_value(""), Ok(()));
        assert_eq!(check_label_value(&"a".repeat(63)), Ok(()));
        assert_eq!(check_label_value(&"a".repeat(64)), Err(NameError::LongValue));
        assert_eq!(check_label_value("a/b"), Err(NameError::Name));
    }
}
