//! Our CRDs on a real API server: it takes them, and accepts and rejects the same objects as upstream's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karpenter_api::acceptance::{self, Verdict};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::conditions;
use kube::{Api, Client, Discovery, ResourceExt};

use crate::runner::{Case, Runs, Suite};
use crate::world;

pub(crate) fn suite() -> Suite {
    Suite {
        name: "crds",
        runs: Runs::BesideOthers,
        cases: vec![
            Case {
                name: "the_api_server_establishes_every_crd_of_the_chart".into(),
                run: Box::new(|environment| {
                    Box::pin(async move {
                        let client = environment.control_plane.admin().await?;
                        install(&client, &environment.karpenter).await.map(|_| ())
                    })
                }),
                limit: Duration::from_secs(600),
            },
            Case {
                name: "every_rule_accepts_and_rejects_what_it_should".into(),
                run: Box::new(|environment| {
                    Box::pin(
                        async move { replay(environment.control_plane.admin().await?, &environment.karpenter).await },
                    )
                }),
                limit: Duration::from_secs(600),
            },
            Case {
                name: "the_examples_for_users_are_accepted".into(),
                run: Box::new(|environment| {
                    Box::pin(async move {
                        examples_of_users(environment.control_plane.admin().await?, &environment.karpenter).await
                    })
                }),
                limit: Duration::from_secs(600),
            },
        ],
    }
}

/// Sends every example of our CRDs and of the providers' NodeClasses to the API server and compares its verdict.
async fn replay(client: Client, karpenter: &Path) -> Result<()> {
    install(&client, karpenter).await?;
    let discovery = Discovery::new(client.clone()).run().await?;
    let mut wrong = Vec::new();
    let cases = examples()?;
    let count = cases.len();
    for case in cases {
        let object: DynamicObject = serde_json::from_value(case.object.clone())?;
        let types = object.types.clone().context("an example without a kind")?;
        let gvk = GroupVersionKind::try_from(&types)?;
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

/// Applies every CRD that `karpenter crds` prints and waits until each is served and can be discovered.
pub(crate) async fn install(client: &Client, karpenter: &Path) -> Result<Vec<String>> {
    let output = tokio::process::Command::new(karpenter)
        .arg("crds")
        .output()
        .await
        .with_context(|| format!("cannot run {}", karpenter.display()))?;
    ensure!(
        output.status.success(),
        "karpenter crds: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let (mut names, mut kinds) = (Vec::new(), Vec::new());
    for document in world::documents(&String::from_utf8(output.stdout)?)? {
        let crd: CustomResourceDefinition = serde_json::from_value(serde_json::to_value(&document)?)?;
        let name = crd.metadata.name.clone().context("a CRD without a name")?;
        let how = PatchParams::apply("karpenter-e2e").force();
        crds.patch(&name, &how, &Patch::Apply(&crd))
            .await
            .with_context(|| format!("{name} was refused"))?;
        names.push(name);
        let served = crd.spec.versions.iter().filter(|version| version.served);
        kinds.extend(served.map(|version| GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind)));
    }
    ensure!(!names.is_empty(), "karpenter crds prints none");
    for name in &names {
        kube::runtime::wait::await_condition(crds.clone(), name, conditions::is_crd_established()).await?;
    }
    wait_until_discovered(client, &kinds).await?;
    Ok(names)
}

/// Waits until both forms of discovery list the kinds: they learn of a CRD some time after it is established, and not together.
async fn wait_until_discovered(client: &Client, kinds: &[GroupVersionKind]) -> Result<()> {
    let groups: Vec<&str> = kinds.iter().map(|kind| kind.group.as_str()).collect();
    let discovery = || Discovery::new(client.clone()).filter(&groups);
    let knows_all = |answer: kube::Result<Discovery>| {
        answer.is_ok_and(|discovery| kinds.iter().all(|kind| discovery.resolve_gvk(kind).is_some()))
    };
    let listed = async {
        while !(knows_all(discovery().run().await) && knows_all(discovery().run_aggregated().await)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), listed)
        .await
        .context("discovery never listed all CRDs")
}

/// The examples of our own CRDs and of every provider that has some.
fn examples() -> Result<Vec<acceptance::Case>> {
    let mut cases = acceptance::cases();
    for provider in std::fs::read_dir("crates/providers").context("cannot read crates/providers")? {
        let dir = provider?.path().join("testdata/acceptance");
        let Ok(files) = std::fs::read_dir(&dir) else { continue };
        for file in files {
            let path = file?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            cases.extend(acceptance::cases_of(&name, &text));
        }
    }
    Ok(cases)
}

/// Every NodeClass that is printed has a default that the API server takes: the committed examples, as they are.
async fn examples_of_users(client: Client, karpenter: &Path) -> Result<()> {
    install(&client, karpenter).await?;
    world::apply(&client, "apiVersion: v1\nkind: Namespace\nmetadata: {name: karpenter}").await?;
    let mut count = 0;
    let mut folders = vec![PathBuf::from("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            // Each example stands for itself: several have a NodePool of the same name for another cloud.
            world::dry_run(&client, &text)
                .await
                .with_context(|| format!("{} was refused", path.display()))?;
            count += 1;
        }
    }
    ensure!(count > 0, "there are no examples");
    Ok(())
}
