//! docs/reference/events.md: every event, as the catalogue of the code has them.

use std::fmt::Write;

use regex::Regex;

use crate::{cell, check_page, read};

#[test]
fn the_reference_of_events_is_current() {
    check_page("docs/reference/events.md", &page());
}

fn page() -> String {
    let mut page = String::from(
        "# Events\n\nEvery event that the controllers publish, generated from the code. `kubectl describe` shows them on the object; \
         `kubectl get events -A --field-selector reason=FailedScheduling` finds them by reason. The same event about the same object \
         is not repeated within the time in the last column.\n",
    );
    let catalogue = read("crates/core/src/events/catalogue.rs");
    let code = catalogue.split("#[cfg(test)]").next().unwrap();
    let section = Regex::new(r"(?m)^// === (.*) ===$").unwrap();
    let function = Regex::new(r"(?ms)^/// ([^\n]*)\npub fn \w+\(.*?\n\}$").unwrap();
    let call = Regex::new(r#"(?s)\b(normal|warning)\(\s*\w+,\s*(?:"(\w+)"|(\w+))"#).unwrap();
    let quiet = Regex::new(r"quiet_for\((?:(\d+) \* )?MINUTE\)").unwrap();
    let mut parts: Vec<(usize, String)> = section
        .captures_iter(code)
        .map(|found| (found.get(0).unwrap().start(), found[1].to_owned()))
        .collect();
    parts.push((code.len(), String::new()));
    let mut count = 0;
    for pair in parts.windows(2) {
        let (start, title) = &pair[0];
        write!(
            page,
            "\n## {title}\n\n| Reason | Type | When | Quiet for |\n|---|---|---|---|\n"
        )
        .unwrap();
        for found in function.captures_iter(&code[*start..pair[1].0]) {
            let body = &found[0];
            let Some(called) = call.captures(body) else { continue };
            let reason = match (called.get(2), called.get(3)) {
                (Some(reason), _) => format!("`{}`", reason.as_str()),
                (None, Some(variable)) if variable.as_str() == "condition" => "the condition's type".to_owned(),
                (None, _) => "the provider's word".to_owned(),
            };
            let severity = if &called[1] == "warning" { "Warning" } else { "Normal" };
            let minutes = quiet.captures(body).map_or(2, |found| {
                found.get(1).map_or(1, |number| number.as_str().parse().unwrap())
            });
            let quiet = if body.contains("on_uid") || body.contains("on_name") || body.contains("deduped_on") {
                format!("{minutes} min")
            } else {
                String::new()
            };
            writeln!(page, "| {reason} | {severity} | {} | {quiet} |", cell(&found[1])).unwrap();
            count += 1;
        }
    }
    let constructors = code.matches("\npub fn ").count() - 1;
    assert_eq!(
        count, constructors,
        "every constructor of the catalogue (truncate aside) is a row"
    );
    page
}
