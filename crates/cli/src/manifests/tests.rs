use super::sources::read_bytes;
use super::*;

fn read(text: &str) -> Result<Vec<String>, String> {
    let mut seen = Vec::new();
    read_bytes("f".into(), text.as_bytes(), &mut |manifest| {
        seen.push(format!("{} {}/{}", manifest.origin, manifest.kind, manifest.name()));
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    Ok(seen)
}

#[test]
fn documents_are_counted_and_empty_ones_left_out() {
    let text = "---\n# nothing\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n";
    assert_eq!(read(text).unwrap(), ["f:2 Pod/a", "f:3 Pod/b"]);
}

#[test]
fn lists_are_taken_apart_in_yaml_and_json() {
    let yaml = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: Node}\n";
    assert_eq!(read(yaml).unwrap(), ["f:1 Pod/a", "f:1 Node/items[1]"]);
    let json = r#"{"apiVersion":"v1","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}},{"apiVersion":"v1","kind":"Node"}],"kind":"List"}"#;
    assert_eq!(read(json).unwrap(), ["f:1 Pod/a", "f:1 Node/items[1]"]);
}

#[test]
fn items_of_a_typed_list_take_their_type_from_it_wherever_it_stands() {
    for json in [
        r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}}]}"#,
        r#"{"items":[{"metadata":{"name":"a"}}],"kind":"PodList","apiVersion":"v1"}"#,
    ] {
        assert_eq!(read(json).unwrap(), ["f:1 Pod/a"]);
    }
}

#[test]
fn json_documents_may_follow_each_other() {
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}} {"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}"#;
    assert_eq!(read(json).unwrap(), ["f:1 Pod/a", "f:2 Pod/b"]);
}

#[test]
fn broken_input_is_reported_with_its_place() {
    assert!(read("a: [1").unwrap_err().starts_with("f:1: "));
    assert!(read("{\"a\": ").unwrap_err().starts_with("f:1: "));
    assert!(read("just text").unwrap_err().contains("apiVersion and kind"));
    assert!(read("[1, 2]").unwrap_err().contains("apiVersion and kind"));
    assert!(
        read(r#"{"apiVersion":"v1","kind":"List","items":[7]}"#)
            .unwrap_err()
            .contains("apiVersion and kind")
    );
}

#[test]
fn a_list_stops_at_the_first_error_of_the_reader() {
    let json = r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#;
    let mut seen = 0;
    let outcome = read_bytes("f".into(), json.as_bytes(), &mut |manifest| {
        seen += 1;
        Err(ManifestError::NotAnObject(manifest.origin))
    });
    assert!(matches!(outcome, Err(ManifestError::NotAnObject(_))));
    assert_eq!(seen, 1);
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in ".*") {
        let _ = read(&text);
    }

    #[test]
    fn any_text_that_begins_like_json_is_read_or_refused_without_a_panic(text in "\\{[\\{\\}\\[\\]:,\"a-z0-9 ]{0,40}") {
        let _ = read(&text);
    }

    #[test]
    fn anything_under_an_object_of_ours_gets_a_verdict_without_a_panic(spec in "\\PC{0,60}", kind in "NodePool|NodeClaim|NodeOverlay") {
        let text = format!("apiVersion: karpenter.sh/v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n");
        let rules = RULES.with(std::rc::Rc::clone);
        let _ = read_bytes("f".into(), text.as_bytes(), &mut |manifest| {
            let _ = rules.check(&manifest);
            Ok(())
        });
    }
}

thread_local! {
    static RULES: std::rc::Rc<crate::verdict::Rules> = std::rc::Rc::new(crate::verdict::Rules::new());
}
