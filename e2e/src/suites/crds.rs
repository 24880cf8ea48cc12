//! Our CRDs on a real API server: it takes them, and accepts and rejects the same objects as upstream's.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karpenter_api::acceptance::{self, Verdict};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::conditions;
use kube::{Api, Client, ResourceExt};

use crate::runner::{Case, Runs, Suite};

pub(crate) fn suite() -> Suite {
    Suite {
        name: "crds",
        runs: Runs::Always,
        cases: vec![
            Case {
                name: "the_api_server_establishes_every_crd_of_the_chart".into(),
                run: Box::new(|environment| {
                    Box::pin(async move { install(&environment.control_plane.admin().await?).await.map(|_| ()) })
                }),
                limit: Duration::from_secs(60),
            },
            Case {
                name: "every_rule_accepts_and_rejects_what_it_should".into(),
                run: Box::new(|environment| {
                    Box::pin(async move { replay(environment.control_plane.admin().await?).await })
                }),
                limit: Duration::from_secs(120),
            },
        ],
    }
}

/// Sends every example of `karpenter_api::acceptance` to the API server and compares its verdict.
async fn replay(client: Client) -> Result<()> {
    install(&client).await?;
    let discovery = kube::Discovery::new(client.clone()).run().await?;
    let mut wrong = Vec::new();
    let cases = acceptance::cases();
    let count = cases.len();
    for case in cases {
        let object: DynamicObject = serde_json::from_value(case.object.clone())?;
        let types = object.types.clone().context("an example without a kind")?;
        let gvk = kube::core::GroupVersionKind::try_from(&types)?;
        let (resource, capabilities) = discovery.resolve_gvk(&gvk).context("a kind without a CRD")?;
        let api: Api<DynamicObject> = match capabilities.scope {
            kube::discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
            kube::discovery::Scope::Namespaced => Api::default_namespaced_with(client.clone(), &resource),
        };
        let answer = match &case.old {
            // Status is dropped on create: it has an endpoint of its own.
            None if object.data.get("status").is_some() => {
                let stored = api.create(&PostParams::default(), &object).await;
                let stored = stored.with_context(|| format!("{}: the object without status was refused", case.rule))?;
                let mut update = object.clone();
                update.metadata.resource_version = stored.resource_version();
                api.replace_status(&stored.name_any(), &PostParams::default(), &update)
                    .await
            }
            None => api.create(&PostParams::default(), &object).await,
            Some(old) => {
                let stored = api
                    .create(&PostParams::default(), &serde_json::from_value(old.clone())?)
                    .await;
                let stored =
                    stored.with_context(|| format!("{}: the object before the update was refused", case.rule))?;
                let mut update = object.clone();
                update.metadata.resource_version = stored.resource_version();
                api.replace(&stored.name_any(), &PostParams::default(), &update).await
            }
        };
        let accepted = match &answer {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => false,
            Err(error) => bail!("{}: {error}", case.rule),
        };
        // What only runtime validation minds, the API server stores.
        if accepted != (case.verdict != Verdict::Rejected) {
            let said = answer.err().map(|error| error.to_string()).unwrap_or_default();
            wrong.push(format!(
                "{}: expected {:?}: {} {said}",
                case.rule, case.verdict, case.object["spec"]
            ));
        }
    }
    ensure!(count > 0, "there are no examples");
    ensure!(
        wrong.is_empty(),
        "{} of {count} verdicts differ:\n       {}",
        wrong.len(),
        wrong.join("\n       ")
    );
    Ok(())
}

/// Applies every CRD document of the chart and waits until each is served.
pub(crate) async fn install(client: &Client) -> Result<Vec<String>> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut names = Vec::new();
    let dir = std::path::Path::new("charts/karpenter-crd/templates");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        let crd: CustomResourceDefinition =
            serde_norway::from_str(&text).with_context(|| format!("{} is not a CRD", file.display()))?;
        let name = crd.metadata.name.clone().context("a CRD without a name")?;
        let how = PatchParams::apply("karpenter-e2e").force();
        crds.patch(&name, &how, &Patch::Apply(&crd))
            .await
            .with_context(|| format!("{name} was refused"))?;
        names.push(name);
    }
    if names.is_empty() {
        bail!("{} holds no CRD", dir.display());
    }
    for name in &names {
        kube::runtime::wait::await_condition(crds.clone(), name, conditions::is_crd_established()).await?;
    }
    Ok(names)
}
