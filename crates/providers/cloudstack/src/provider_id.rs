//! The string by which a Node and its virtual machine know each other (cloudstack.md §10).

use thiserror::Error;
use uuid::Uuid;

/// How provider IDs of new machines look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProviderIdFormat {
    /// `external-cloudstack://<id>`, as the cloud-controller-manager writes.
    #[default]
    Ccm,
    /// `cloudstack:///<id>`, as Cluster API's provider writes.
    Capi,
    /// `cloudstack://<zone>/<id>`, as the Go prototype wrote.
    Legacy,
    /// With `{id}` and, perhaps, `{zone}`.
    Custom(String),
}

/// A string that is no provider ID of ours.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a provider ID of a CloudStack machine: it must end in a UUID and have the scheme cloudstack or external-cloudstack"
)]
pub struct InvalidProviderId(pub String);

/// The machine that a provider ID of any known form names, in lower case.
///
/// # Errors
/// When it is none.
pub fn machine_id(provider_id: &str) -> Result<String, InvalidProviderId> {
    let invalid = || InvalidProviderId(provider_id.to_owned());
    let rest = match provider_id.split_once("://") {
        Some(("external-cloudstack" | "cloudstack", rest)) => rest,
        Some(_) => return Err(invalid()),
        None => provider_id,
    };
    let last = rest.rsplit('/').next().unwrap_or_default();
    if last.len() != 36 {
        return Err(invalid());
    }
    let id = Uuid::parse_str(last).map_err(|_| invalid())?;
    Ok(id.to_string())
}

impl ProviderIdFormat {
    /// Reads the value of `CLOUDSTACK_PROVIDER_ID_FORMAT`; `None` is `auto`.
    ///
    /// # Errors
    /// A sentence about what is possible.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        match text {
            "auto" | "" => Ok(None),
            "ccm" => Ok(Some(Self::Ccm)),
            "capi" => Ok(Some(Self::Capi)),
            "legacy" => Ok(Some(Self::Legacy)),
            custom if custom.contains("{id}") => Ok(Some(Self::Custom(custom.to_owned()))),
            other => Err(format!(
                "CLOUDSTACK_PROVIDER_ID_FORMAT {other:?} is not one of auto, ccm, capi, legacy or a text with {{id}}"
            )),
        }
    }

    pub fn render(&self, id: &str, zone: &str) -> String {
        match self {
            Self::Ccm => format!("external-cloudstack://{id}"),
            Self::Capi => format!("cloudstack:///{id}"),
            Self::Legacy => format!("cloudstack://{zone}/{id}"),
            Self::Custom(text) => text.replace("{id}", id).replace("{zone}", zone),
        }
    }

    /// The form that most of these provider IDs have.
    pub fn most_used<'a>(provider_ids: impl IntoIterator<Item = &'a str>) -> Self {
        let mut counts = [0usize; 3];
        for text in provider_ids {
            if machine_id(text).is_err() {
                continue;
            }
            if text.starts_with("external-cloudstack://") {
                counts[0] += 1;
            } else if text.starts_with("cloudstack:///") {
                counts[1] += 1;
            } else if text.starts_with("cloudstack://") {
                counts[2] += 1;
            }
        }
        let most = counts.iter().copied().max().unwrap_or_default();
        match counts {
            [ccm, _, _] if ccm == most => Self::Ccm,
            [_, capi, _] if capi == most => Self::Capi,
            _ => Self::Legacy,
        }
    }

    /// What stands before the id, for scripts that build the ID in the guest.
    pub fn prefix(&self, zone: &str) -> String {
        let whole = self.render("\u{0}", zone);
        whole.split('\u{0}').next().unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "c6a6fe25-9e69-4728-b8b1-ccbf5f4639c4";

    #[test]
    fn every_form_in_the_wild_names_the_machine() {
        let forms = [
            "external-cloudstack://",
            "external-cloudstack:///",
            "cloudstack:///",
            "cloudstack://zone a/",
            "",
        ];
        for form in forms {
            assert_eq!(machine_id(&format!("{form}{ID}")).as_deref(), Ok(ID), "{form}");
        }
        assert_eq!(machine_id(&ID.to_uppercase()).as_deref(), Ok(ID));
    }

    #[test]
    fn foreign_ids_are_refused() {
        for foreign in [
            "aws:///eu-1/i-1",
            "external-cloudstack",
            "cloudstack:///not-a-uuid",
            "",
            &format!("aws:///{ID}"),
        ] {
            assert!(machine_id(foreign).is_err(), "{foreign}");
        }
    }

    #[test]
    fn the_form_of_existing_nodes_wins() {
        let capi = format!("cloudstack:///{ID}");
        let ccm = format!("external-cloudstack://{ID}");
        assert_eq!(
            ProviderIdFormat::most_used([capi.as_str(), &capi, &ccm, "aws:///i"]),
            ProviderIdFormat::Capi
        );
        assert_eq!(ProviderIdFormat::most_used([]), ProviderIdFormat::Ccm);
        assert_eq!(ProviderIdFormat::Legacy.render(ID, "z"), format!("cloudstack://z/{ID}"));
        assert_eq!(ProviderIdFormat::Ccm.prefix("z"), "external-cloudstack://");
    }
}
