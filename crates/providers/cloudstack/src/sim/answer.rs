//! Answers in the server's envelopes.

use serde_json::{Value, json};

/// An error as the server tells it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) cs: u16,
    pub(super) text: String,
    /// A machine whose record stays although the request failed.
    pub(super) left: Option<String>,
    pub(super) key: Key,
}

/// The top-level key of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Command,
    ErrorResponse,
    Null,
}

pub(super) type Answered = Result<Value, Refusal>;

impl Refusal {
    pub(super) fn new(code: u16, cs: u16, text: impl Into<String>) -> Self {
        Self {
            code,
            cs,
            text: text.into(),
            left: None,
            key: Key::Command,
        }
    }

    pub(super) fn invalid(text: impl Into<String>) -> Self {
        Self::new(431, 4350, text)
    }

    pub(super) fn forbidden(text: impl Into<String>) -> Self {
        Self::new(531, 4365, text)
    }

    /// What everyone but root administrators is told of internal errors.
    pub(super) fn internal() -> Self {
        Self::new(
            530,
            0,
            "Internal error executing command, please contact your system administrator",
        )
    }

    pub(super) fn unauthorised(key: Key) -> Self {
        Self {
            key,
            ..Self::new(401, 0, "unable to verify user credentials and/or request signature")
        }
    }

    /// The role lacks the command.
    pub(super) fn no_such_api(command: &str, account: &str) -> Self {
        let text = format!("The API [{command}] does not exist or is not available for the account {account}.");
        Self {
            key: Key::ErrorResponse,
            ..Self::new(432, 9999, text)
        }
    }

    pub(super) fn unknown_id(command: &str, param: &str, value: &str) -> Self {
        Self::new(
            431,
            9999,
            format!(
                "Unable to execute API command {} due to invalid value. Invalid parameter {param} value={value} due to incorrect \
             long value format, or entity does not exist or due to incorrect parameter annotation for the field in api cmd class.",
                command.to_lowercase()
            ),
        )
    }

    pub(super) fn body(&self, command: &str) -> Value {
        let left: Vec<Value> = self
            .left
            .iter()
            .map(|id| json!({"uuid": id, "description": "virtualmachineid"}))
            .collect();
        let mut inner = json!({"uuidList": left, "errorcode": self.code, "errortext": self.text});
        if self.code != 401 {
            inner["cserrorcode"] = json!(self.cs);
        }
        let key = match self.key {
            Key::Command => format!("{}response", command.to_lowercase()),
            Key::ErrorResponse => "errorresponse".to_owned(),
            Key::Null => "null".to_owned(),
        };
        json!({key: inner})
    }
}

/// The same answer for those who do not ask for JSON; empty lists have no elements there.
pub(super) fn xml(answered: &Value, version: &str) -> String {
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>".to_owned();
    for (name, inner) in answered.as_object().into_iter().flatten() {
        text.push_str(&format!("<{name} cloud-stack-version=\"{version}\">"));
        elements(&mut text, inner);
        text.push_str(&format!("</{name}>"));
    }
    text
}

fn elements(text: &mut String, value: &Value) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        for item in items {
            text.push_str(&format!("<{name}>"));
            match item {
                Value::Object(_) => elements(text, item),
                Value::String(own) => {
                    let own = own.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                    text.push_str(&own);
                }
                other => text.push_str(&other.to_string()),
            }
            text.push_str(&format!("</{name}>"));
        }
    }
}

/// A page of a list: nothing at all if there is nothing, only the count past the end.
pub(super) fn list(object: &str, all: Vec<Value>, page: Page) -> Value {
    let count = all.len();
    if count == 0 {
        return json!({});
    }
    let items: Vec<Value> = match page {
        Page::Everything => all,
        Page::Part { number, size } => all.into_iter().skip((number - 1) * size).take(size).collect(),
    };
    if items.is_empty() {
        return json!({"count": count});
    }
    json!({"count": count, object: items})
}

/// Which part of a list is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Everything,
    Part { number: usize, size: usize },
}
