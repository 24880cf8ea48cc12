//! A CustomResourceDefinition, read and checked: names, versions and what each version can do.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::compiled::Compiled;
use super::error::FieldError;
use super::jsonpath::JsonPath;
use super::schema::CompiledSchema;

/// Everything the API server needs to know of a custom resource.
#[derive(Debug, Clone)]
pub struct Definition {
    pub group: String,
    pub names: Names,
    pub scope: Scope,
    pub versions: Vec<Version>,
}

/// `spec.names` with its defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// One entry of `spec.versions`.
#[derive(Debug, Clone)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    /// The warning of a deprecated version.
    pub deprecation: Option<String>,
    pub schema: Arc<CompiledSchema>,
    /// `openAPIV3Schema` as written, for OpenAPI and `kubectl explain`.
    pub document: Arc<Value>,
    pub columns: Vec<PrinterColumn>,
    pub selectable_fields: Vec<JsonPath>,
    pub has_status: bool,
    pub scale: Option<ScalePaths>,
}

/// `additionalPrinterColumns`.
#[derive(Debug, Clone)]
pub struct PrinterColumn {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub path: JsonPath,
}

/// `subresources.scale`.
#[derive(Debug, Clone)]
pub struct ScalePaths {
    pub spec_replicas: JsonPath,
    pub status_replicas: JsonPath,
    pub label_selector: Option<JsonPath>,
}

impl Definition {
    /// Reads a CRD, compiling the schemas of all its versions.
    pub fn parse(crd: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let spec = &crd["spec"];
        let group = required_text(spec, "group", "spec.group", &mut errors);
        let names = Names::parse(&spec["names"], &mut errors);
        let expected = format!("{}.{group}", names.plural);
        let name = crd["metadata"]["name"].as_str().unwrap_or_default();
        if errors.is_empty() && name != expected {
            let detail = "must be spec.names.plural+\".\"+spec.group";
            errors.push(FieldError::invalid("metadata.name", &name.into(), detail));
        }
        let scope = match spec["scope"].as_str() {
            Some("Cluster") => Scope::Cluster,
            Some("Namespaced") => Scope::Namespaced,
            None => {
                errors.push(FieldError::required("spec.scope", ""));
                Scope::Cluster
            }
            Some(other) => {
                errors.push(FieldError::not_supported(
                    "spec.scope",
                    &other.into(),
                    ["Cluster", "Namespaced"],
                ));
                Scope::Cluster
            }
        };
        let versions: Vec<Version> = spec["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .filter_map(|(i, version)| Version::parse(version, &format!("spec.versions[{i}]"), &mut errors))
            .collect();
        if errors.is_empty() && versions.iter().filter(|v| v.storage).count() != 1 {
            let detail = "must have exactly one version marked as storage version";
            errors.push(FieldError::invalid("spec.versions", &spec["versions"], detail));
        }
        if errors.is_empty() {
            Ok(Self {
                group,
                names,
                scope,
                versions,
            })
        } else {
            Err(errors)
        }
    }

    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.name == name)
    }

    pub fn storage_version(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.storage)
    }
}

impl Names {
    fn parse(names: &Value, errors: &mut Vec<FieldError>) -> Self {
        let kind = required_text(names, "kind", "spec.names.kind", errors);
        let text = |key: &str| names[key].as_str().filter(|s| !s.is_empty()).map(str::to_owned);
        let list = |key: &str| -> Vec<String> {
            names[key]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        Self {
            list_kind: text("listKind").unwrap_or_else(|| format!("{kind}List")),
            plural: required_text(names, "plural", "spec.names.plural", errors),
            singular: text("singular").unwrap_or_else(|| kind.to_lowercase()),
            short_names: list("shortNames"),
            categories: list("categories"),
            kind,
        }
    }
}

/// The same definitions are read again whenever one of them changes, and by every sandbox that a test starts; compiling their rules
/// is most of the cost of starting one.
static COMPILED: Compiled<CompiledSchema> = Compiled::keeping(64);

impl Version {
    fn parse(version: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<Self> {
        let name = required_text(version, "name", &format!("{path}.name"), errors);
        let Some(document) = version.pointer("/schema/openAPIV3Schema") else {
            let field = format!("{path}.schema.openAPIV3Schema");
            errors.push(FieldError::required(field, "schemas are required"));
            return None;
        };
        let schema = COMPILED.of(&document.to_string(), || {
            CompiledSchema::compile(document, &format!("{path}.schema.openAPIV3Schema"))
        });
        let schema = schema.map_err(|found| errors.extend(found)).ok()?;
        let columns = version["additionalPrinterColumns"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate();
        let columns = columns
            .filter_map(|(i, c)| PrinterColumn::parse(c, &format!("{path}.additionalPrinterColumns[{i}]"), errors))
            .collect();
        let selectable = version["selectableFields"].as_array().into_iter().flatten().enumerate();
        let selectable_fields = selectable
            .filter_map(|(i, f)| {
                json_path(
                    &f["jsonPath"],
                    &format!("{path}.selectableFields[{i}].jsonPath"),
                    errors,
                )
            })
            .collect();
        let deprecation = (version["deprecated"] == true).then(|| {
            let written = version["deprecationWarning"].as_str().map(str::to_owned);
            written.unwrap_or_else(|| format!("version {name} is deprecated"))
        });
        let scale = &version["subresources"]["scale"];
        Some(Self {
            served: version["served"] == true,
            storage: version["storage"] == true,
            deprecation,
            schema,
            document: Arc::new(document.clone()),
            columns,
            selectable_fields,
            has_status: version["subresources"]["status"].is_object(),
            scale: scale
                .is_object()
                .then(|| ScalePaths::parse(scale, path, errors))
                .flatten(),
            name,
        })
    }
}

impl ScalePaths {
    fn parse(scale: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<Self> {
        let path = format!("{path}.subresources.scale");
        let spec_replicas = json_path(&scale["specReplicasPath"], &format!("{path}.specReplicasPath"), errors);
        let status_replicas = json_path(
            &scale["statusReplicasPath"],
            &format!("{path}.statusReplicasPath"),
            errors,
        );
        let label_selector = match &scale["labelSelectorPath"] {
            Value::Null => None,
            written => json_path(written, &format!("{path}.labelSelectorPath"), errors),
        };
        Some(Self {
            spec_replicas: spec_replicas?,
            status_replicas: status_replicas?,
            label_selector,
        })
    }
}

impl PrinterColumn {
    fn parse(column: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<Self> {
        let text = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
        Some(Self {
            name: required_text(column, "name", &format!("{path}.name"), errors),
            kind: required_text(column, "type", &format!("{path}.type"), errors),
            format: text("format"),
            description: text("description"),
            priority: column["priority"].as_i64().unwrap_or(0),
            path: json_path(&column["jsonPath"], &format!("{path}.jsonPath"), errors)?,
        })
    }

    /// The cell of `object` in this column; `age` renders dates as the table's ages are rendered.
    pub fn cell(&self, object: &Value, age: impl Fn(Timestamp) -> String) -> Value {
        let Some(value) = self.path.first(object).filter(|v| !v.is_null()) else {
            return Value::Null;
        };
        match self.kind.as_str() {
            "integer" => value
                .as_i64()
                .or_else(|| value.as_f64().map(truncated))
                .map_or(Value::Null, Value::from),
            "number" => value.as_f64().map_or(Value::Null, Value::from),
            "boolean" => value.as_bool().map_or(Value::Null, Value::from),
            "date" => match value.as_str().map(str::parse::<Timestamp>) {
                Some(Ok(time)) => age(time).into(),
                Some(Err(_)) => "<invalid>".into(),
                None => Value::Null,
            },
            _ => match value {
                Value::String(text) => text.as_str().into(),
                other => other.to_string().into(),
            },
        }
    }
}

/// Integer columns cut fractions off; JSON numbers beyond the range saturate.
fn truncated(number: f64) -> i64 {
    #[allow(clippy::cast_possible_truncation)]
    let whole = number.trunc() as i64;
    whole
}

fn required_text(parent: &Value, key: &str, path: &str, errors: &mut Vec<FieldError>) -> String {
    match parent[key].as_str() {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => {
            errors.push(FieldError::required(path, ""));
            String::new()
        }
    }
}

fn json_path(written: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<JsonPath> {
    let Some(source) = written.as_str() else {
        errors.push(FieldError::required(path, ""));
        return None;
    };
    JsonPath::parse(source)
        .map_err(|error| errors.push(FieldError::invalid(path, written, &error.to_string())))
        .ok()
}
