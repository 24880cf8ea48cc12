//! JSON, one object after the other; lists are walked item by item without building them.

use std::fmt;
use std::sync::Arc;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{Manifest, ManifestError, Origin, item_type};

type Each<'a> = dyn FnMut(Manifest) -> Result<(), ManifestError> + 'a;

pub(super) fn read(file: Arc<str>, bytes: &[u8], each: &mut Each<'_>) -> Result<(), ManifestError> {
    let mut rest = bytes;
    let mut position = 0;
    while rest.iter().any(|byte| !byte.is_ascii_whitespace()) {
        position += 1;
        let origin = Origin {
            file: Arc::clone(&file),
            document: position,
            item: None,
        };
        let mut failure = None;
        let mut stream = serde_json::Deserializer::from_slice(rest);
        let top = Top {
            origin: &origin,
            each,
            failure: &mut failure,
        };
        let outcome = stream.deserialize_map(top);
        if let Some(failure) = failure {
            return Err(failure);
        }
        let remainder = outcome.map_err(|error| ManifestError::Syntax {
            origin: origin.clone(),
            problem: error.to_string(),
        })?;
        match remainder {
            Remainder::List => {}
            Remainder::Object(value) => Manifest::flatten(origin, value, each)?,
        }
        rest = &rest[stream.into_iter::<serde::de::IgnoredAny>().byte_offset()..];
    }
    Ok(())
}

/// What is left to do with a document once it has been walked.
enum Remainder {
    /// It was a list, and its items have been handed on.
    List,
    Object(Value),
}

/// Walks the top of a document. Items of a list go to `each` as soon as they are read.
struct Top<'a, 'b> {
    origin: &'a Origin,
    each: &'a mut Each<'b>,
    /// What `each` reported; serde can't carry it.
    failure: &'a mut Option<ManifestError>,
}

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = Remainder;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Remainder, A::Error> {
        let mut fields = Map::new();
        let mut untyped: Vec<(usize, Value)> = Vec::new();
        let mut walked = false;
        while let Some(name) = map.next_key::<String>()? {
            // `items` of something that is not a list stays what it is; a ConfigMap may have such a field under `data` only.
            let may_be_list = fields
                .get("kind")
                .and_then(Value::as_str)
                .is_none_or(|kind| kind.ends_with("List"));
            if name == "items" && may_be_list && !walked {
                walked = true;
                let kind = fields.get("kind").and_then(Value::as_str).unwrap_or_default();
                let api_version = fields.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
                let inherited = item_type(api_version, kind);
                map.next_value_seed(Items {
                    origin: self.origin,
                    inherited,
                    untyped: &mut untyped,
                    each: &mut *self.each,
                    failure: &mut *self.failure,
                })?;
                continue;
            }
            let value = map.next_value()?;
            fields.insert(name, value);
        }
        if !walked {
            return Ok(Remainder::Object(Value::Object(fields)));
        }
        // Items without a type of their own waited for the list's, which `kubectl` writes after them.
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let inherited = item_type(text("apiVersion"), text("kind"));
        for (position, item) in untyped {
            let origin = Origin {
                item: Some(position),
                ..self.origin.clone()
            };
            let handed_on = Manifest::new(origin, item, inherited.as_ref()).and_then(&mut *self.each);
            if let Err(failure) = handed_on {
                *self.failure = Some(failure);
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(Remainder::List)
    }
}

struct Items<'a, 'b> {
    origin: &'a Origin,
    inherited: Option<(String, String)>,
    untyped: &'a mut Vec<(usize, Value)>,
    each: &'a mut Each<'b>,
    failure: &'a mut Option<ManifestError>,
}

impl<'de> DeserializeSeed<'de> for Items<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut position = 0;
        while let Some(item) = items.next_element::<Value>()? {
            let typed = item.get("kind").is_some() && item.get("apiVersion").is_some();
            if typed || self.inherited.is_some() {
                let origin = Origin {
                    item: Some(position),
                    ..self.origin.clone()
                };
                let handed_on = Manifest::new(origin, item, self.inherited.as_ref()).and_then(&mut *self.each);
                if let Err(failure) = handed_on {
                    *self.failure = Some(failure);
                    return Err(serde::de::Error::custom("stopped"));
                }
            } else {
                self.untyped.push((position, item));
            }
            position += 1;
        }
        Ok(())
    }
}
