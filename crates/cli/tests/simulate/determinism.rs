//! Equal input gives equal bytes, whatever order it comes in.

use serde_json::Value;

use super::{fixtures, run, without_timing};

fn answer(items: &[Value]) -> String {
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": items });
    let types = fixtures().join("types-1.json");
    let output = run(
        &["-f", "-", "--instance-types", types.to_str().unwrap(), "-o", "json"],
        &list.to_string(),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    without_timing(serde_json::from_slice(&output.stdout).unwrap()).to_string()
}

fn items(case: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures().join(case).join("cluster.json")).unwrap();
    let mut list: Value = serde_json::from_str(&text).unwrap();
    match list["items"].take() {
        Value::Array(items) => items,
        other => panic!("{other}"),
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let items = items("all-60p-12n-1");
    assert_eq!(answer(&items), answer(&items));
}

#[test]
fn the_order_of_documents_does_not_matter() {
    for case in ["all-60p-12n-1", "all-100p-0n-1", "prefer-40p-0n-1"] {
        let original = items(case);
        let expected = answer(&original);
        for stride in [7_usize, 11, 13] {
            let length = original.len();
            let step = (stride..).find(|step| gcd(*step, length) == 1).unwrap();
            let shuffled: Vec<Value> = (0..length)
                .map(|i| original[(i * step + stride) % length].clone())
                .collect();
            assert_eq!(answer(&shuffled), expected, "{case} in steps of {step}");
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
