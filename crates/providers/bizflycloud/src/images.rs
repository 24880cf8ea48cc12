//! Which image a node boots from: names and aliases resolved to ids, and BKE's worker image for the cluster's version (§5.1, §5.5).

use crate::{
    client::wire::{CustomImage, KubernetesVersion, OsFamily},
    node_class::{BizflyCloudNodeClassSpec, ResolvedImage},
    problem::Problem,
};

/// All images that an account can boot.
#[derive(Clone, Debug, Default)]
pub struct ImageInventory {
    pub os_images: Vec<OsFamily>,
    pub custom_images: Vec<CustomImage>,
    pub versions: Vec<KubernetesVersion>,
}

/// How nodes join, as far as the image depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePolicy {
    /// BKE's worker images.
    Worker,
    /// Whatever the NodeClass names.
    Template,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundImages {
    pub images: Vec<ResolvedImage>,
    pub warnings: Vec<String>,
    pub unresolved: Vec<String>,
}

/// A version of Kubernetes, as far as images care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

const FLATCAR: &str = "flatcar";
const UBUNTU: &str = "ubuntu";
/// How many near matches a message names.
const NEAR: usize = 3;

/// The images of a class. `default_image` is the ProviderConfig's, for classes that choose none.
///
/// # Errors
/// When none can be found; the message names what was asked for and what there is.
pub fn resolve(
    class: &BizflyCloudNodeClassSpec,
    policy: ImagePolicy,
    default_image: &str,
    cluster_version: Option<Version>,
    inventory: &ImageInventory,
) -> Result<FoundImages, Problem> {
    let mut found = FoundImages::default();
    if let Some(id) = mapped(class, cluster_version) {
        found.images.push(
            inventory
                .by_id(id)
                .ok_or_else(|| not_found("imageMapping", id, inventory))?,
        );
        return Ok(found);
    }
    let mut asked: Vec<String> = class
        .image_selector_terms
        .iter()
        .filter_map(|term| term.asked().map(str::to_owned))
        .collect();
    if asked.is_empty() {
        asked.extend(class.template.clone().filter(|_| policy == ImagePolicy::Template));
    }
    if asked.is_empty() && policy == ImagePolicy::Template {
        asked.push(default_image.to_owned());
    }
    match policy {
        ImagePolicy::Template => resolve_template(&asked, inventory, found),
        ImagePolicy::Worker => resolve_worker(class, &asked, default_image, cluster_version, inventory, found),
    }
}

/// The first term that means an image.
fn resolve_template(
    asked: &[String],
    inventory: &ImageInventory,
    mut found: FoundImages,
) -> Result<FoundImages, Problem> {
    for text in asked {
        match inventory.look_up(text) {
            Lookup::One(image) => found.images.push(image),
            Lookup::First(image, others) => {
                found
                    .warnings
                    .push(format!("{text} means {} images; {} is used", others + 1, image.id));
                found.images.push(image);
            }
            Lookup::None => {
                found.unresolved.push(text.clone());
                continue;
            }
        }
        return Ok(found);
    }
    let text = asked.join(", ");
    Err(not_found("imageSelectorTerms", &text, inventory))
}

/// An id is taken as it is; an alias of Ubuntu or Flatcar means BKE's worker image of that system, because a stock image
/// has no bootstrap.
fn resolve_worker(
    class: &BizflyCloudNodeClassSpec,
    asked: &[String],
    default_image: &str,
    cluster_version: Option<Version>,
    inventory: &ImageInventory,
    mut found: FoundImages,
) -> Result<FoundImages, Problem> {
    let mut systems: Vec<(String, String)> = Vec::new();
    for text in asked {
        if is_uuid(text) {
            found.images.push(
                inventory
                    .by_id(text)
                    .ok_or_else(|| not_found("imageSelectorTerms", text, inventory))?,
            );
            return Ok(found);
        }
        let slug = slug(text);
        let Some(system) = [UBUNTU, FLATCAR].into_iter().find(|own| slug.starts_with(own)) else {
            let message = format!("\"{text}\" has no BKE worker image; use an Ubuntu or Flatcar alias, or an image id");
            return Err(Problem::new("ImageNotFound", message));
        };
        found.warnings.push(format!(
            "ImageAliasMappedToWorkerImage: {text} stands for BKE's {system} worker image"
        ));
        systems.push((system.to_owned(), text.clone()));
    }
    if systems.is_empty() {
        let of_class = class.os_type.iter().map(|own| (own.clone(), String::new()));
        systems.extend(of_class);
    }
    if systems.is_empty() {
        let slug = slug(default_image);
        let system = if slug.starts_with(FLATCAR) { FLATCAR } else { UBUNTU };
        systems.push((system.to_owned(), String::new()));
    }
    let Some(cluster_version) = cluster_version else {
        return Err(Problem::new(
            "NoImageForVersion",
            "the version of the API server is not known yet",
        ));
    };
    for (system, alias) in systems {
        if found.images.iter().any(|image| image.os_type == system) {
            continue;
        }
        let (worker, warning) = worker_image(&system, cluster_version, &inventory.versions)?;
        found.warnings.extend(warning);
        found.images.push(ResolvedImage {
            id: worker.worker_image_id.clone(),
            name: if alias.is_empty() {
                worker.worker_image_id.clone()
            } else {
                alias
            },
            os_type: system,
            kubernetes_version: Some(plain_version(&worker.kubernetes_version).to_owned()),
        });
    }
    Ok(found)
}

/// The exact version, else the highest patch that is not newer than the cluster, else the lowest that is.
fn worker_image<'a>(
    system: &str,
    cluster: Version,
    versions: &'a [KubernetesVersion],
) -> Result<(&'a KubernetesVersion, Option<String>), Problem> {
    let is_flatcar = |text: &str| text.ends_with(".flatcar");
    let mut usable: Vec<(Version, &KubernetesVersion)> = versions
        .iter()
        .filter(|own| !own.worker_image_id.is_empty() && is_flatcar(&own.kubernetes_version) == (system == FLATCAR))
        .filter_map(|own| Some((Version::parse(plain_version(&own.kubernetes_version))?, own)))
        .collect();
    usable.sort_by_key(|(version, _)| *version);
    let same_minor: Vec<&(Version, &KubernetesVersion)> = usable
        .iter()
        .filter(|(version, _)| (version.major, version.minor) == (cluster.major, cluster.minor))
        .collect();
    if let Some((_, best)) = same_minor.iter().rev().find(|(version, _)| *version <= cluster) {
        return Ok((*best, None));
    }
    if let Some((version, newer)) = same_minor.first() {
        let warning = format!("the {system} worker image is for {version}, newer than the cluster's {cluster}");
        return Ok((*newer, Some(warning)));
    }
    let there: Vec<String> = usable.iter().map(|(version, _)| version.to_string()).collect();
    let message = format!(
        "BKE has no {system} worker image for {cluster}; it has {}",
        there.join(", ")
    );
    Err(Problem::new("NoImageForVersion", message))
}

fn plain_version(text: &str) -> &str {
    text.strip_suffix(".flatcar").unwrap_or(text)
}

/// The entry of `imageMapping` for the cluster's version: exact, else of the same minor with the highest patch.
fn mapped(class: &BizflyCloudNodeClassSpec, cluster: Option<Version>) -> Option<&str> {
    let cluster = cluster?;
    let entries = class
        .image_mapping
        .iter()
        .filter_map(|(version, id)| Some((Version::parse(version)?, id.as_str())));
    let of_minor: Vec<(Version, &str)> = entries
        .filter(|(version, _)| (version.major, version.minor) == (cluster.major, cluster.minor))
        .collect();
    let exact = of_minor.iter().find(|(version, _)| *version == cluster);
    exact.or_else(|| of_minor.iter().max()).map(|(_, id)| *id)
}

enum Lookup {
    One(ResolvedImage),
    /// The first of several, and how many others there are.
    First(ResolvedImage, usize),
    None,
}

impl ImageInventory {
    fn all(&self) -> impl Iterator<Item = ResolvedImage> + '_ {
        let stock = self.os_images.iter().flat_map(|family| {
            family.versions.iter().map(|version| ResolvedImage {
                id: version.id.clone(),
                name: slug(&format!("{} {}", family.os, version.name)),
                os_type: family.os.to_lowercase(),
                kubernetes_version: None,
            })
        });
        let custom = self.custom_images.iter().map(|image| ResolvedImage {
            id: image.id.clone(),
            name: slug(&image.name),
            os_type: "custom".to_owned(),
            kubernetes_version: None,
        });
        let workers = self
            .versions
            .iter()
            .filter(|own| !own.worker_image_id.is_empty())
            .map(|own| ResolvedImage {
                id: own.worker_image_id.clone(),
                name: own.worker_image_id.clone(),
                os_type: if own.kubernetes_version.ends_with(".flatcar") {
                    FLATCAR
                } else {
                    UBUNTU
                }
                .to_owned(),
                kubernetes_version: Some(plain_version(&own.kubernetes_version).to_owned()),
            });
        stock.chain(custom).chain(workers)
    }

    fn by_id(&self, id: &str) -> Option<ResolvedImage> {
        let found = self.all().find(|image| image.id == id)?;
        Some(ResolvedImage {
            name: id.to_owned(),
            ..found
        })
    }

    /// An id; else the exact slug; else the start of exactly one slug.
    fn look_up(&self, text: &str) -> Lookup {
        if let Some(image) = self.by_id(text) {
            return Lookup::One(image);
        }
        let wanted = slug(text);
        let named = |matches: &dyn Fn(&str) -> bool| -> Vec<ResolvedImage> {
            self.all().filter(|image| matches(&image.name)).collect()
        };
        let mut hits = named(&|name| name == wanted);
        if hits.is_empty() {
            hits = named(&|name| name.starts_with(&format!("{wanted}-")));
        }
        let others = hits.len().saturating_sub(1);
        match hits.into_iter().next() {
            None => Lookup::None,
            Some(first) => {
                let first = ResolvedImage { name: wanted, ..first };
                if others == 0 {
                    Lookup::One(first)
                } else {
                    Lookup::First(first, others)
                }
            }
        }
    }
}

fn not_found(field: &str, text: &str, inventory: &ImageInventory) -> Problem {
    let system = slug(text).split('-').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = inventory.all().map(|image| image.name).collect();
    names.sort_by_key(|name| (!name.starts_with(&system), name.clone()));
    names.dedup();
    names.truncate(NEAR);
    let near = if names.is_empty() {
        String::new()
    } else {
        format!("; there are for example {}", names.join(", "))
    };
    Problem::new(
        "ImageNotFound",
        format!("spec.{field}: there is no image \"{text}\"{near}"),
    )
}

/// `Ubuntu 20.04 x64` → `ubuntu-20.04`; `Ubuntu 24.04 LTS` → `ubuntu-24.04-lts`.
pub fn slug(text: &str) -> String {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split([' ', '_']).filter(|word| !word.is_empty()).collect();
    let words = match words.split_last() {
        Some((last, rest)) if ["x64", "x86_64", "amd64"].contains(last) && !rest.is_empty() => rest,
        _ => &words[..],
    };
    words.join("-")
}

pub fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts
            .iter()
            .all(|part| part.chars().all(|char| char.is_ascii_hexdigit()))
}

impl Version {
    /// `v1.31.5`, `1.31.5+k3s1`, `v1.31`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.trim().trim_start_matches('v');
        let plain = plain.split(['+', '-']).next().unwrap_or(plain);
        let mut parts = plain.split('.');
        let mut number = || parts.next().map(str::parse::<u32>);
        let (major, minor) = (number()?.ok()?, number()?.ok()?);
        let patch = match number() {
            Some(patch) => patch.ok()?,
            None => 0,
        };
        Some(Self { major, minor, patch })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CUSTOM: &str = "11111111-2222-3333-4444-555555555555";

    fn inventory() -> ImageInventory {
        let version = |text: &str, image: &str| KubernetesVersion {
            kubernetes_version: text.to_owned(),
            worker_image_id: image.to_owned(),
        };
        ImageInventory {
            os_images: serde_json::from_value(json!([
                {"os": "Ubuntu", "versions": [{"name": "20.04 x64", "id": "u20"}, {"name": "24.04 LTS", "id": "u24"}]},
                {"os": "Debian", "versions": [{"name": "12 x64", "id": "d12"}]},
            ]))
            .expect("images"),
            custom_images: vec![CustomImage {
                id: CUSTOM.to_owned(),
                name: "My Image".to_owned(),
            }],
            versions: vec![
                version("v1.30.2", "w-30-2"),
                version("v1.30.9", "w-30-9"),
                version("v1.30.9.flatcar", "f-30-9"),
                version("v1.31.0", ""),
            ],
        }
    }

    fn ids(class: serde_json::Value, policy: ImagePolicy, version: &str) -> Result<Vec<String>, String> {
        let class: BizflyCloudNodeClassSpec = serde_json::from_value(class).expect("a spec");
        resolve(&class, policy, "ubuntu-20.04", Version::parse(version), &inventory())
            .map(|found| found.images.into_iter().map(|image| image.id).collect())
            .map_err(|problem| format!("{}: {}", problem.reason, problem.message))
    }

    #[test]
    fn aliases_and_names_mean_images() {
        let template = ImagePolicy::Template;
        let by = |term: serde_json::Value| ids(json!({"imageSelectorTerms": [term]}), template, "v1.30.5");
        assert_eq!(by(json!({"alias": "ubuntu-20.04"})), Ok(vec!["u20".into()]));
        assert_eq!(
            by(json!({"alias": "ubuntu-24.04"})),
            Ok(vec!["u24".into()]),
            "a unique beginning"
        );
        assert_eq!(by(json!({"name": "Ubuntu 24.04 LTS"})), Ok(vec!["u24".into()]));
        assert_eq!(by(json!({"id": CUSTOM})), Ok(vec![CUSTOM.into()]));
        assert_eq!(
            ids(json!({}), template, "v1.30.5"),
            Ok(vec!["u20".into()]),
            "the default"
        );
        let error = by(json!({"alias": "ubuntu-99.04"})).expect_err("no such image");
        assert!(
            error.starts_with("ImageNotFound: ") && error.contains("ubuntu-20.04"),
            "{error}"
        );
    }

    #[test]
    fn the_first_term_that_means_something_wins() {
        let terms = json!({"imageSelectorTerms": [{"alias": "centos-7"}, {"alias": "debian-12"}]});
        assert_eq!(ids(terms, ImagePolicy::Template, "v1.30.5"), Ok(vec!["d12".into()]));
    }

    #[test]
    fn bke_takes_the_worker_image_for_the_clusters_version() {
        let worker = |class: serde_json::Value, version: &str| ids(class, ImagePolicy::Worker, version);
        assert_eq!(worker(json!({}), "v1.30.9"), Ok(vec!["w-30-9".into()]), "exact");
        assert_eq!(
            worker(json!({}), "v1.30.5"),
            Ok(vec!["w-30-2".into()]),
            "not newer than the cluster"
        );
        assert_eq!(
            worker(json!({}), "v1.30.1"),
            Ok(vec!["w-30-2".into()]),
            "newer if there is no other"
        );
        assert_eq!(
            worker(json!({"osType": ["flatcar"]}), "v1.30.9"),
            Ok(vec!["f-30-9".into()])
        );
        let error = worker(json!({}), "v1.31.4").expect_err("that version has no image");
        assert!(
            error.starts_with("NoImageForVersion: ") && error.contains("v1.30.9"),
            "{error}"
        );
    }

    #[test]
    fn on_bke_an_alias_means_the_system_and_an_id_means_itself() {
        let worker =
            |term: serde_json::Value| ids(json!({"imageSelectorTerms": [term]}), ImagePolicy::Worker, "v1.30.9");
        assert_eq!(worker(json!({"alias": "ubuntu-20.04"})), Ok(vec!["w-30-9".into()]));
        assert_eq!(worker(json!({"id": CUSTOM})), Ok(vec![CUSTOM.into()]));
        let error = worker(json!({"alias": "debian-12"})).expect_err("no worker image");
        assert!(error.contains("debian-12"), "{error}");
    }

    #[test]
    fn an_image_mapping_decides_by_version() {
        let class = json!({"imageMapping": {"v1.30": CUSTOM, "v1.29.1": "u20"}});
        assert_eq!(ids(class, ImagePolicy::Worker, "v1.30.9"), Ok(vec![CUSTOM.into()]));
    }

    #[test]
    fn slugs_lose_the_architecture() {
        assert_eq!(slug("Ubuntu 20.04 x64"), "ubuntu-20.04");
        assert_eq!(slug("Ubuntu 24.04 LTS"), "ubuntu-24.04-lts");
    }
}
