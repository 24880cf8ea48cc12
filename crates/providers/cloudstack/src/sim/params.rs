//! The parameters of a request, as the server unpacks them.

use std::collections::BTreeMap;

use super::answer::Refusal;

/// How a request was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Method {
    #[default]
    Get,
    Post,
}

/// Decoded parameters; names are matched ignoring case.
#[derive(Clone, Debug, Default)]
pub(super) struct Params {
    pub(super) method: Method,
    /// As sent, for the signature.
    pub(super) raw: Vec<(String, String)>,
    plain: BTreeMap<String, String>,
    /// `details[0].key` as name → index → field → value.
    maps: BTreeMap<String, BTreeMap<u32, BTreeMap<String, String>>>,
    malformed: Option<String>,
}

impl Params {
    pub(super) fn decode(method: Method, encoded: &[u8], more: Option<&str>) -> Self {
        let query = more.map(|query| query.as_bytes().to_vec()).unwrap_or_default();
        let mut params = Self {
            method,
            ..Self::default()
        };
        for part in [query.as_slice(), encoded] {
            for (name, value) in url::form_urlencoded::parse(part) {
                params.add(name.into_owned(), value.into_owned());
            }
        }
        params
    }

    fn add(&mut self, name: String, value: String) {
        if let Some((map, rest)) = name.split_once('[') {
            match rest.split_once("].") {
                Some((index, field)) if index.parse::<u32>().is_ok() && !field.is_empty() => {
                    let index = index.parse().expect("checked in the guard");
                    let entries = self.maps.entry(map.to_lowercase()).or_default();
                    entries
                        .entry(index)
                        .or_default()
                        .insert(field.to_owned(), value.clone());
                }
                _ => {
                    self.malformed.get_or_insert(name.clone());
                }
            }
        } else {
            self.plain.insert(name.to_lowercase(), value.clone());
        }
        self.raw.push((name, value));
    }

    /// Refuses what no command takes: malformed maps, control characters, too long values.
    pub(super) fn check(&self, command: &str) -> Result<(), Refusal> {
        if let Some(name) = &self.malformed {
            return Err(Refusal::new(
                430,
                9999,
                format!(
                    "Unable to decode parameter {name}; if specifying an object array, please use parameter[index].field=XXX, e.g. userGroupList[0].group=httpGroup"
                ),
            ));
        }
        for (name, value) in &self.plain {
            let is_illegal = |char: char| char.is_ascii_control() && char != '\n' && char != '\r';
            if value.chars().any(is_illegal) {
                let text =
                    format!("Received value containing illegal ASCII non-printable characters for parameter {name}");
                return Err(Refusal::new(431, 9999, text));
            }
            let is_short = ["name", "displayname", "group", "keyword", "description"].contains(&name.as_str());
            if is_short && value.chars().count() > 255 {
                let name = if name == "displayname" { "displayName" } else { name };
                return Err(Refusal::new(
                    431,
                    9999,
                    format!(
                        "Unable to execute API command {} due to invalid value. Value greater than max allowed length 255 for param: {name}",
                        command.to_lowercase()
                    ),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.plain.get(name).map(String::as_str)
    }

    /// A value that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.text(name).map(|value| value.eq_ignore_ascii_case("true"))
    }

    pub(super) fn list(&self, name: &str) -> Vec<&str> {
        self.text(name)
            .map(|value| {
                value
                    .split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .collect()
            })
            .unwrap_or_default()
    }

    pub(super) fn number(&self, command: &str, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.text(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| {
            Refusal::new(
                431,
                9999,
                format!(
                    "Unable to execute API command {} due to invalid value {value} for parameter {name}",
                    command.to_lowercase()
                ),
            )
        })
    }

    /// All fields of a details-style map.
    pub(super) fn details(&self, name: &str) -> BTreeMap<String, String> {
        let entries = self.maps.get(name).into_iter().flat_map(|map| map.values());
        entries.flat_map(|fields| fields.clone()).collect()
    }

    /// The entries of a map, by index.
    pub(super) fn entries(&self, name: &str) -> Vec<BTreeMap<String, String>> {
        self.maps
            .get(name)
            .map(|map| map.values().cloned().collect())
            .unwrap_or_default()
    }

    /// The pairs of a tags-style map.
    pub(super) fn tags(&self, name: &str) -> Vec<(String, String)> {
        let field = |fields: &BTreeMap<String, String>, name: &str| fields.get(name).cloned().unwrap_or_default();
        self.entries(name)
            .iter()
            .map(|fields| (field(fields, "key"), field(fields, "value")))
            .collect()
    }
}
