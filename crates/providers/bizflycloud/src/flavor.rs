//! Flavors: what their names say, for catalogue entries that say nothing else.
//!
//! Names have grown over the years: `nix.4c_8g` (legacy premium), `4c_8g_basic` (legacy others), `p4a.4c_8g` (tier, generation,
//! `a` for AMD), and the short form `4c_8g`, which users write and the API lists nowhere.

use std::{fmt, str::FromStr};

use crate::client::wire::Flavor;

/// A server tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    Basic,
    Premium,
    Enterprise,
    Dedicated,
}

/// How many vCPUs and GiB a name speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size {
    pub vcpus: u32,
    pub gib: u32,
}

/// The vendor label of flavors that do not tell.
pub const UNKNOWN_VENDOR: &str = "unknown";
/// The generations that are known to exist: as names spell them.
const GENERATIONS: [&str; 2] = ["2", "4a"];

impl Category {
    pub const ALL: [Self; 4] = [Self::Basic, Self::Premium, Self::Enterprise, Self::Dedicated];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Premium => "premium",
            Self::Enterprise => "enterprise",
            Self::Dedicated => "dedicated",
        }
    }

    /// The first letter of new flavor names.
    const fn tier(self) -> char {
        match self {
            Self::Basic => 'b',
            Self::Premium => 'p',
            Self::Enterprise => 'e',
            Self::Dedicated => 'd',
        }
    }

    /// What a flavor's name says about its category.
    pub fn of_name(name: &str) -> Option<Self> {
        if let Some((prefix, _)) = name.split_once('.') {
            if prefix == "nix" {
                return Some(Self::Premium);
            }
            return Self::ALL.into_iter().find(|own| prefix.starts_with(own.tier()));
        }
        let suffix = name.splitn(3, '_').nth(2)?;
        suffix.parse().ok()
    }
}

impl FromStr for Category {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let lower = text.to_lowercase();
        Self::ALL.into_iter().find(|own| own.as_str() == lower).ok_or(())
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Size {
    /// Reads exactly `<n>c_<m>g`.
    pub fn parse(text: &str) -> Option<Self> {
        let (vcpus, gib) = text.split_once("c_")?;
        let gib = gib.strip_suffix('g')?;
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        Some(Self {
            vcpus: number(vcpus)?,
            gib: number(gib)?,
        })
    }

    /// The size within any form of name.
    pub fn of_name(name: &str) -> Option<Self> {
        let after_tier = name.split_once('.').map_or(name, |(_, rest)| rest);
        let mut parts = after_tier.splitn(3, '_');
        let (cpus, gib) = (parts.next()?, parts.next()?);
        Self::parse(&format!("{cpus}_{gib}"))
    }

    /// Every name that a flavor of this size is known to have, for use without a catalogue (§4.2).
    pub fn spellings(self) -> Vec<String> {
        let mut names = vec![format!("{self}"), format!("nix.{self}")];
        for category in [Category::Basic, Category::Enterprise, Category::Dedicated] {
            names.push(format!("{self}_{category}"));
        }
        for category in [
            Category::Premium,
            Category::Basic,
            Category::Enterprise,
            Category::Dedicated,
        ] {
            names.extend(GENERATIONS.map(|generation| format!("{}{generation}.{self}", category.tier())));
        }
        names
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}c_{}g", self.vcpus, self.gib)
    }
}

impl Flavor {
    /// Its tier; premium, the vendor's own default, when nothing tells.
    pub fn category(&self) -> Category {
        let told = self.category.as_deref().and_then(|category| category.parse().ok());
        told.or_else(|| Category::of_name(&self.name))
            .unwrap_or(Category::Premium)
    }

    /// `Intel2`, `AMD4`, …, from the generation or else from the name.
    pub fn cpu_vendor(&self) -> String {
        let generation = self.generation.as_ref();
        let told = generation.and_then(|generation| vendor(generation.vendor.as_deref()?, generation.code.as_deref()?));
        told.or_else(|| vendor_of_name(&self.name))
            .unwrap_or_else(|| UNKNOWN_VENDOR.to_owned())
    }

    /// Whether a Kubernetes node can run on it at all.
    pub fn is_usable(&self) -> bool {
        !self.name.ends_with("_vps") && self.vcpus >= 1 && self.ram >= 1024
    }
}

fn vendor(vendor: &str, code: &str) -> Option<String> {
    let digits: String = code.chars().filter(char::is_ascii_digit).collect();
    let name = match vendor.to_lowercase().as_str() {
        "intel" => "Intel",
        "amd" => "AMD",
        _ => return None,
    };
    (!digits.is_empty()).then(|| format!("{name}{digits}"))
}

fn vendor_of_name(name: &str) -> Option<String> {
    let (prefix, _) = name.split_once('.')?;
    let generation = prefix.get(1..)?;
    match generation.strip_suffix('a') {
        Some(digits) => vendor("amd", digits),
        None => generation
            .chars()
            .all(|char| char.is_ascii_digit())
            .then(|| vendor("intel", generation))?,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, category: Option<Category>, size: Option<(u32, u32)>, vendor: Option<&str>) {
        assert_eq!(Category::of_name(name), category, "{name}");
        let size = size.map(|(vcpus, gib)| Size { vcpus, gib });
        assert_eq!(Size::of_name(name), size, "{name}");
        assert_eq!(vendor_of_name(name).as_deref(), vendor, "{name}");
    }

    #[test]
    fn every_form_of_name_is_read() {
        check("p4a.2c_4g", Some(Category::Premium), Some((2, 4)), Some("AMD4"));
        check("b2.4c_8g", Some(Category::Basic), Some((4, 8)), Some("Intel2"));
        check("nix.24c_64g", Some(Category::Premium), Some((24, 64)), None);
        check("3c_6g_enterprise", Some(Category::Enterprise), Some((3, 6)), None);
        check("4c_8g", None, Some((4, 8)), None);
        check("odd", None, None, None);
    }

    #[test]
    fn only_the_short_form_is_a_size_by_itself() {
        assert_eq!(Size::parse("16c_32g"), Some(Size { vcpus: 16, gib: 32 }));
        assert_eq!(Size::parse("nix.4c_8g"), None);
        assert_eq!(Size::parse("4c_8g_basic"), None);
    }

    #[test]
    fn offline_a_short_name_stands_for_all_its_spellings() {
        let names = Size { vcpus: 4, gib: 8 }.spellings();
        assert_eq!(names.len(), 13);
        for name in ["4c_8g", "nix.4c_8g", "4c_8g_dedicated", "p4a.4c_8g", "d2.4c_8g"] {
            assert!(names.iter().any(|own| own == name), "{name}");
        }
    }
}
