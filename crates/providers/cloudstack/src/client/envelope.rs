//! Opens CloudStack's answers: one top-level key around an object, an error, or nothing at all (cloudstack.md §2.5).

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::failure::{Failure, Told};

/// The content of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// `listzonesresponse`, `errorresponse`, `null`, ….
    pub key: String,
    pub fields: Map<String, Value>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Over all pages.
    pub count: usize,
}

/// Reads a body. `None` if it is not CloudStack's JSON.
pub fn open(body: &[u8]) -> Option<Content> {
    let value: Value = serde_json::from_slice(body).ok().or_else(|| {
        // The server un-escapes \uXXXX, so raw control characters can be inside strings.
        let text = std::str::from_utf8(body).ok()?;
        serde_json::from_str(&escape_control_characters(text)).ok()
    })?;
    let Value::Object(outer) = value else { return None };
    let (key, inner) = outer.into_iter().next()?;
    let Value::Object(fields) = inner else { return None };
    Some(Content { key, fields })
}

fn escape_control_characters(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let (mut in_string, mut after_backslash) = (false, false);
    for char in text.chars() {
        if in_string && char.is_control() && (char as u32) < 0x20 {
            escaped.push_str(&format!("\\u{:04x}", char as u32));
            after_backslash = false;
            continue;
        }
        match char {
            '"' if !after_backslash => in_string = !in_string,
            _ => {}
        }
        after_backslash = in_string && char == '\\' && !after_backslash;
        escaped.push(char);
    }
    escaped
}

impl Content {
    /// The error, if it is one.
    pub fn failure(&self, command: &str) -> Option<Failure> {
        let code = self.fields.get("errorcode")?.as_u64()?;
        let text = self.fields.get("errortext").and_then(Value::as_str).unwrap_or_default();
        let undispatched = self.key == "errorresponse" || self.key == "null";
        let mut failure = Failure::new(
            command,
            u16::try_from(code).unwrap_or(530),
            text,
            Told::AtOnce { undispatched },
        );
        let left: Vec<String> = self
            .fields
            .get("uuidList")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter(|entry| entry["description"] == "virtualmachineid")
            .filter_map(|entry| entry["uuid"].as_str().map(str::to_owned))
            .collect();
        failure.left_behind = left;
        Some(failure)
    }

    /// The items of a list answer; an empty list has neither count nor items.
    ///
    /// # Errors
    /// When an item is not what was expected.
    pub fn page<T: DeserializeOwned>(&self, object: &str) -> Result<Page<T>, serde_json::Error> {
        let items = match self.fields.get(object) {
            Some(items) => serde_json::from_value::<Vec<T>>(items.clone())?,
            None => Vec::new(),
        };
        let count = self.fields.get("count").and_then(Value::as_u64);
        let count = count
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(items.len());
        Ok(Page { items, count })
    }

    /// One object of the answer.
    ///
    /// # Errors
    /// When it is not what was expected, or not there.
    pub fn object<T: DeserializeOwned>(&self, object: &str) -> Result<T, serde_json::Error> {
        serde_json::from_value(self.fields.get(object).cloned().unwrap_or_default())
    }

    /// The whole answer.
    ///
    /// # Errors
    /// When it is not what was expected.
    pub fn whole<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_value(Value::Object(self.fields.clone()))
    }

    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_and_a_page_past_the_end_are_empty() {
        let empty = open(br#"{"listzonesresponse":{}}"#).expect("an envelope");
        assert_eq!(
            empty.page::<Value>("zone").expect("a page"),
            Page {
                items: vec![],
                count: 0
            }
        );
        let past = open(br#"{"listzonesresponse":{"count":7}}"#).expect("an envelope");
        assert_eq!(past.page::<Value>("zone").expect("a page").count, 7);
    }

    #[test]
    fn raw_control_characters_inside_strings_are_tolerated() {
        let body = b"{\"listzonesresponse\":\n{\"count\":1,\"zone\":[{\"displaytext\":\"a\x01b\\\"\x02\"}]}}";
        let content = open(body).expect("an envelope");
        assert_eq!(content.fields["zone"][0]["displaytext"], "a\u{1}b\"\u{2}");
    }

    #[test]
    fn html_is_not_an_envelope() {
        assert_eq!(open(b"<html><body>502</body></html>"), None);
    }

    #[test]
    fn an_error_names_what_it_left_behind() {
        let body = br#"{"deployvirtualmachineresponse":{"uuidList":[{"uuid":"u-1","description":"virtualmachineid"}],
            "errorcode":530,"cserrorcode":0,"errortext":"x"}}"#;
        let failure = open(body)
            .expect("an envelope")
            .failure("deployVirtualMachine")
            .expect("an error");
        assert_eq!(failure.left_behind, ["u-1"]);
    }
}
