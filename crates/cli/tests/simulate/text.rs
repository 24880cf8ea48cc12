//! The view for people.

use super::{POOL, pod, run};

#[test]
fn the_text_shows_nodes_fill_price_and_reasons_without_colours() {
    let input = format!("{POOL}{}{}", pod("web", "3", ""), pod("huge", "1000", ""));
    let output = run(&["-f", "-"], &input);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "1 node to launch",
        "c-4x-amd64-linux",
        "NodePool default",
        "█",
        "Pod default/web",
        "default/huge",
        "a month",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "colours although stdout is no terminal");
}

#[test]
fn equal_nodes_are_shown_once() {
    let apart = ", affinity: { podAntiAffinity: { requiredDuringSchedulingIgnoredDuringExecution: [{ \
        topologyKey: kubernetes.io/hostname, labelSelector: {} }] } }";
    let input = format!(
        "{POOL}{}{}{}",
        pod("a", "1", apart),
        pod("b", "1", apart),
        pod("c", "1", apart)
    );
    let text = String::from_utf8(run(&["-f", "-"], &input).stdout).unwrap();
    assert!(text.contains("3 × "), "{text}");
}
