//! Regions and zones of BizFly Cloud, in every spelling that its tools and users have for them.

use std::fmt;

use thiserror::Error;

/// A region in which machines can be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    HaNoi,
    HoChiMinh,
}

/// What a user's text for a region means: the region, and the zone if one was named.
///
/// Manifests in the field say `region: HN1` although HN1 is a zone. It then selects the region HN and says which zone to
/// prefer; it does not restrict, because the same manifests ask for HN1 *and* HN2 (§3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionChoice {
    pub region: Region,
    pub preferred_zone: Option<String>,
}

/// A region that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{0}\" is not a BizFly Cloud region; use HN, HCM, HaNoi, HoChiMinh, or a zone of one: HN1, HN2, HCM1")]
pub struct UnknownRegion(pub String);

impl Region {
    pub const ALL: [Self; 2] = [Self::HaNoi, Self::HoChiMinh];

    /// As the service catalogue and servers spell it.
    pub const fn canonical(self) -> &'static str {
        match self {
            Self::HaNoi => "HaNoi",
            Self::HoChiMinh => "HoChiMinh",
        }
    }

    /// As the region label spells it.
    pub const fn short(self) -> &'static str {
        match self {
            Self::HaNoi => "HN",
            Self::HoChiMinh => "HCM",
        }
    }

    /// The zones that are known to exist; the account's own list may have fewer.
    pub const fn zones(self) -> &'static [&'static str] {
        match self {
            Self::HaNoi => &["HN1", "HN2"],
            Self::HoChiMinh => &["HCM1"],
        }
    }

    /// Whether another spelling means this region.
    pub fn is(self, text: &str) -> bool {
        RegionChoice::parse(text).is_ok_and(|choice| choice.region == self)
    }
}

impl RegionChoice {
    /// Reads any spelling, upper or lower case.
    ///
    /// # Errors
    /// Names the spellings that there are.
    pub fn parse(text: &str) -> Result<Self, UnknownRegion> {
        let lower = text.trim().to_lowercase();
        for region in Region::ALL {
            if lower == region.canonical().to_lowercase() || lower == region.short().to_lowercase() {
                return Ok(Self {
                    region,
                    preferred_zone: None,
                });
            }
            let zone = region.zones().iter().find(|zone| lower == zone.to_lowercase());
            if let Some(zone) = zone {
                return Ok(Self {
                    region,
                    preferred_zone: Some((*zone).to_owned()),
                });
            }
        }
        Err(UnknownRegion(text.to_owned()))
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, region: Region, zone: Option<&str>) {
        let choice = RegionChoice::parse(text).expect("a region");
        assert_eq!(
            (choice.region, choice.preferred_zone.as_deref()),
            (region, zone),
            "{text}"
        );
    }

    #[test]
    fn every_spelling_of_a_region_is_understood() {
        for text in ["HN", "hn", "HaNoi", "hanoi"] {
            check(text, Region::HaNoi, None);
        }
        for text in ["HCM", "hochiminh"] {
            check(text, Region::HoChiMinh, None);
        }
    }

    #[test]
    fn a_zone_where_a_region_is_expected_selects_its_region_and_is_preferred() {
        check("HN1", Region::HaNoi, Some("HN1"));
        check("hn2", Region::HaNoi, Some("HN2"));
        check("HCM1", Region::HoChiMinh, Some("HCM1"));
    }

    #[test]
    fn an_unknown_region_is_refused_with_the_valid_ones() {
        let error = RegionChoice::parse("SG1").expect_err("no such region").to_string();
        for part in ["\"SG1\"", "HN1", "HN2", "HCM1"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
