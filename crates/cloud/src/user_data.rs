//! Renders the user data that a machine boots with from a template that users write.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;
use thiserror::Error;

/// A checked template. An unknown variable is an error, not an empty string: a node that boots with half its settings
/// costs money and never joins.
pub struct UserData {
    environment: Environment<'static>,
}

const NAME: &str = "userData";

/// Why user data cannot be used.
#[derive(Debug, Error)]
pub enum UserDataError {
    #[error("user data is not a valid template: {0}")]
    Syntax(String),
    #[error("user data cannot be rendered: {0}")]
    Render(String),
    #[error("user data is {size} bytes, the cloud takes at most {limit}")]
    TooLong { size: usize, limit: usize },
}

impl UserData {
    /// Parses a template.
    ///
    /// # Errors
    /// Names the line that is wrong.
    pub fn parse(template: &str) -> Result<Self, UserDataError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // Shell scripts and cloud-config, not HTML.
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_keep_trailing_newline(true);
        environment.add_filter("b64encode", |text: String| STANDARD.encode(text));
        environment.add_filter("shell_quote", |text: String| shell_quote(&text));
        environment
            .add_template_owned(NAME, template.to_owned())
            .map_err(|error| UserDataError::Syntax(sentence(&error)))?;
        Ok(Self { environment })
    }

    /// Fills in the variables.
    ///
    /// # Errors
    /// When the template uses a variable that `variables` lacks; the values themselves are not part of the error.
    pub fn render(&self, variables: &impl Serialize) -> Result<String, UserDataError> {
        let template = self.environment.get_template(NAME).expect("parse() added the template");
        template
            .render(variables)
            .map_err(|error| UserDataError::Render(sentence(&error)))
    }

    /// The variables that the template refers to, e.g. to check a NodeClass before anything is launched.
    pub fn variables(&self) -> Vec<String> {
        let template = self.environment.get_template(NAME).expect("parse() added the template");
        let mut names: Vec<String> = template.undeclared_variables(false).into_iter().collect();
        names.sort();
        names
    }
}

impl fmt::Debug for UserData {
    /// Without the template: people write secrets into user data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserData")
            .field("variables", &self.variables())
            .finish_non_exhaustive()
    }
}

/// Encodes user data for a cloud that takes base64 of limited length (measured before encoding).
///
/// # Errors
/// When it is too long.
pub fn encode(user_data: &str, limit: usize) -> Result<String, UserDataError> {
    if user_data.len() > limit {
        return Err(UserDataError::TooLong {
            size: user_data.len(),
            limit,
        });
    }
    Ok(STANDARD.encode(user_data))
}

/// The error's kind, detail and line, without the source text around it.
fn sentence(error: &minijinja::Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(template: &str, variables: serde_json::Value) -> Result<String, UserDataError> {
        UserData::parse(template)?.render(&variables)
    }

    #[test]
    fn variables_are_filled_in_without_escaping() {
        let text = "#!/bin/sh\njoin --token {{ token }} --labels '{{ labels | join(\",\") }}'\n";
        let rendered = render(text, json!({"token": "a<b>&c", "labels": ["x=1", "y=2"]})).expect("rendered");
        assert_eq!(rendered, "#!/bin/sh\njoin --token a<b>&c --labels 'x=1,y=2'\n");
    }

    #[test]
    fn an_unknown_variable_is_an_error_that_says_where() {
        let error = render("a\n{{ nope }}\n", json!({})).expect_err("undefined");
        assert_eq!(
            error.to_string(),
            "user data cannot be rendered: undefined value (line 2)"
        );
    }

    #[test]
    fn a_broken_template_is_refused_when_it_is_parsed() {
        let error = UserData::parse("{{ open").expect_err("syntax");
        assert!(
            error.to_string().starts_with("user data is not a valid template: "),
            "{error}"
        );
    }

    #[test]
    fn the_variables_of_a_template_are_known_before_it_is_rendered() {
        let data = UserData::parse("{{ token }} {% for l in labels %}{{ l }}{% endfor %}").expect("a template");
        assert_eq!(data.variables(), ["labels", "token"]);
    }

    #[test]
    fn text_is_quoted_for_the_shell_and_encoded() {
        assert_eq!(
            render("{{ a | shell_quote }}", json!({"a": "it's"})).expect("rendered"),
            r"'it'\''s'"
        );
        assert_eq!(
            render("{{ a | b64encode }}", json!({"a": "hi"})).expect("rendered"),
            "aGk="
        );
        assert_eq!(encode("hi", 2).expect("short enough"), "aGk=");
        assert_eq!(
            encode("hi!", 2).expect_err("long").to_string(),
            "user data is 3 bytes, the cloud takes at most 2"
        );
    }

    #[test]
    fn the_debug_form_does_not_show_the_template() {
        let data = UserData::parse("password: hunter2").expect("a template");
        assert!(!format!("{data:?}").contains("hunter2"));
    }
}
