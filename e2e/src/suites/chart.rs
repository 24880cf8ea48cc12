//! The chart in Helm's hands: it renders for every provider, refuses what makes no sense, keeps secrets in Secrets, and a real API
//! server takes what comes out.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::crds;
use crate::helm::Helm;
use crate::runner::{Case, Environment, Run, Runs, Suite};
use crate::world;

const PROVIDERS: [&str; 4] = ["bizflycloud", "cloudstack", "kwok", "ovhcloud"];

/// Everything that is off by default and needs no CRD of others.
const EXTRAS: [&str; 4] = [
    "--set",
    "dashboards.enabled=true,networkPolicy.enabled=true,webhook.enabled=true",
    "--set-json",
    EGRESS,
];
const EGRESS: &str = r#"networkPolicy.egress=[{"ports":[{"port":443},{"port":53,"protocol":"UDP"}]}]"#;

/// A value that must be found in a Secret and nowhere else.
const CANARY: &str = "c4n4ry-d0-n0t-l3ak";

pub(crate) fn suite() -> Suite {
    Suite {
        name: "chart",
        runs: Runs::BesideOthers,
        cases: vec![
            case("every_provider_passes_helm_lint", |_| Box::pin(aside(lint))),
            case("the_committed_manifests_are_what_helm_renders", |_| {
                Box::pin(aside(committed))
            }),
            case("awkward_values_are_rendered_or_refused_with_a_sentence", |_| {
                Box::pin(aside(awkward))
            }),
            case("values_of_the_cloudstack_prototype_render", |_| {
                Box::pin(aside(prototype))
            }),
            case("every_value_has_an_effect", |_| Box::pin(aside(no_dead_values))),
            case("credentials_appear_in_secrets_only", |_| Box::pin(aside(secrets))),
            case("the_api_server_takes_what_is_rendered", |environment| {
                Box::pin(dry_run(environment))
            }),
        ],
    }
}

fn case(
    name: &str,
    run: impl for<'a> Fn(&'a mut Environment) -> futures::future::LocalBoxFuture<'a, Result<()>> + 'static,
) -> Case {
    Case {
        name: name.to_owned(),
        run: Box::new(run) as Run,
        // Helm may have to be built first.
        limit: Duration::from_secs(1_800),
    }
}

/// Waits for Helm on a thread of its own: the suites share one, and must not stand still for the minutes that this takes.
async fn aside<T: Send + 'static>(work: fn() -> Result<T>) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

fn values(provider: &str) -> String {
    format!("deploy/values/{provider}.yaml")
}

fn lint() -> Result<()> {
    let helm = Helm::obtain()?;
    for provider in PROVIDERS {
        helm.lint(&["--values", &values(provider)])?;
    }
    Ok(())
}

fn committed() -> Result<()> {
    let helm = Helm::obtain()?;
    for provider in PROVIDERS {
        let file = format!("deploy/{provider}.yaml");
        let written = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        ensure!(
            helm.template(&["--values", &values(provider)])? == written,
            "{file} is out of date; run make manifests"
        );
    }
    Ok(())
}

fn awkward() -> Result<()> {
    let helm = Helm::obtain()?;
    let project = "ovh.serviceName=0123456789abcdef0123456789abcdef";
    // Values that must be refused, and a part of the sentence that says why.
    for (set, sentence) in [
        ("", "no provider is chosen"),
        ("provider=aws", "/provider"),
        ("provider=ovhcloud", "ovh.serviceName is required"),
        ("provider=cloudstack", "clusterName is required"),
        ("ovh.serviceName=my-project", "/ovh/serviceName"),
        (
            "ovh.serviceName=0123456789abcdef0123456789abcdef,bizflycloud.region=HN",
            "ovhcloud and bizflycloud",
        ),
        (
            "cloudstack.apiUrl=https://c/api,cloudstack.apiKey=k,clusterName=c",
            "go together",
        ),
        (
            "bizflycloud.email=a@example.com,bizflycloud.region=HN",
            "bizflycloud.password",
        ),
        (
            "bizflycloud.email=a@example.com,bizflycloud.password=p",
            "bizflycloud.region is required",
        ),
        (
            "bizflycloud.email=a@example.com,bizflycloud.password=123,bizflycloud.region=HN",
            "/bizflycloud/password",
        ),
        (
            "provider=kwok,featureGates.NoSuchGate=true",
            "featureGates.NoSuchGate is not a feature gate",
        ),
        (
            "provider=kwok,proxy.httpsProxy=http://user:pass@proxy",
            "/proxy/httpsProxy",
        ),
        ("provider=kwok,replica=3", "replica"),
        (
            "provider=kwok,settings.batchMaxDuration=soon",
            "/settings/batchMaxDuration",
        ),
        ("provider=kwok,controller.metrics.port=0", "/controller/metrics/port"),
        (
            "ovh.serviceName=0123456789abcdef0123456789abcdef,credentials.create=true",
            "credentials.create needs",
        ),
    ] {
        let said = helm.refusal(&["--set", set])?;
        ensure!(said.contains(sentence), "--set {set}: expected {sentence:?} in: {said}");
    }
    // Values that must arrive as they are given, and where.
    for (arguments, expected) in [
        (["--set-string", "provider=kwok,clusterName=007"], "value: \"007\""),
        (["--set-string", "provider=kwok,clusterName=yes"], "value: \"yes\""),
        (["--set-string", "provider=kwok,logLevel=debug"], "value: \"debug\""),
        (
            ["--set-string", "provider=kwok,podAnnotations.a=1: 2 # 3"],
            "a: '1: 2 # 3'",
        ),
        (
            ["--set-string", "provider=kwok,clusterName=with \"quotes\" and \\\\"],
            r#"value: "with \"quotes\" and \\""#,
        ),
        (["--set", "provider=kwok,replicaCount=0"], "replicas: 0"),
        (["--set", "provider=kwok,replicas=1"], "replicas: 1"),
        (
            ["--set", "provider=kwok,featureGates.NodeRepair=true"],
            "NodeRepair=true",
        ),
        (["--set", "provider=kwok,image.tag=v9"], "karpenter:v9"),
        (["--set", "provider=kwok,resources.limits.memory=1Gi"], "memory: 1Gi"),
        (
            ["--set", "provider=kwok,fullnameOverride=karpenter-cloudstack"],
            "name: karpenter-cloudstack-core",
        ),
        (["--set-json", r#"affinity={}"#], "--provider, ovhcloud"),
    ] {
        let rendered = helm.template(&[
            arguments[0],
            arguments[1],
            "--set",
            if arguments[1].contains("kwok") { "" } else { project },
        ])?;
        ensure!(
            rendered.contains(expected),
            "{arguments:?}: expected {expected:?} in the manifests"
        );
    }
    Ok(())
}

/// Every value that the chart of the Go prototype for CloudStack had, under its own name.
const PROTOTYPE: &str = r#"
replicaCount: 1
image: {repository: registry.example/karpenter, pullPolicy: IfNotPresent, tag: ""}
imagePullSecrets: []
nameOverride: ""
fullnameOverride: ""
cloudstack: {apiUrl: "https://cloud.example", apiKey: k, secretKey: s, verifySSL: true}
clusterName: my-cluster
serviceAccount: {create: true, annotations: {}, name: ""}
podAnnotations: {}
podSecurityContext: {fsGroup: 65532, runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true}
service: {type: ClusterIP, port: 8080}
resources: {limits: {cpu: 1000m, memory: 512Mi}, requests: {cpu: 100m, memory: 256Mi}}
nodeSelector: {}
tolerations: [{key: CriticalAddonsOnly, operator: Exists}]
affinity: {}
logLevel: info
webhook: {enabled: true, port: 8443}
"#;

/// What its users have installs unchanged, and becomes ready: probes ask the port that answers.
fn prototype() -> Result<()> {
    let helm = Helm::obtain()?;
    let file = std::env::temp_dir().join(format!("karpenter-prototype-{}.yaml", std::process::id()));
    std::fs::write(&file, PROTOTYPE)?;
    let rendered = helm.template(&["--values", &file.to_string_lossy()]);
    std::fs::remove_file(&file)?;
    let rendered = rendered?;
    for expected in [
        "replicas: 1",
        "image: registry.example/karpenter:v",
        "containerPort: 8081",
        "--provider, cloudstack",
        "kind: PodDisruptionBudget",
        "kind: ValidatingWebhookConfiguration",
        "value: \"8443\"",
        "leases",
    ] {
        ensure!(rendered.contains(expected), "expected {expected:?} in the manifests");
    }
    Ok(())
}

/// Each value, set to something else than its default, changes what is rendered.
fn no_dead_values() -> Result<()> {
    let helm = Helm::obtain()?;
    let of_providers: [(&str, &[&str]); 4] = [
        (
            "kwok",
            &[
                "clusterName=c",
                "nameOverride=n",
                "fullnameOverride=n",
                "additionalLabels.a=b",
                "additionalAnnotations.a=b",
                "imagePullPolicy=Always",
                "imagePullSecrets[0].name=s",
                "serviceAccount.create=false",
                "serviceAccount.name=n",
                "serviceAccount.annotations.a=b",
                "additionalClusterRoleRules[0].verbs[0]=get",
                "serviceMonitor.enabled=true",
                "alerts.enabled=true",
                "dashboards.enabled=true",
                "replicas=3",
                "revisionHistoryLimit=3",
                "strategy.rollingUpdate.maxUnavailable=0",
                "podLabels.a=b",
                "podAnnotations.a=b",
                "podDisruptionBudget.name=n",
                "podDisruptionBudget.maxUnavailable=2",
                "podSecurityContext.fsGroup=1",
                "securityContext.runAsUser=1",
                "priorityClassName=p",
                "terminationGracePeriodSeconds=9",
                "hostNetwork=true",
                "dnsPolicy=ClusterFirst",
                "dnsConfig.nameservers[0]=1.1.1.1",
                "nodeSelector.a=b",
                "tolerations[0].key=k",
                "extraVolumes[0].name=v",
                "service.type=NodePort",
                "service.port=9",
                "service.annotations.a=b",
                "networkPolicy.enabled=true",
                "controller.image.repository=r",
                "controller.image.tag=t",
                "controller.env[0].name=A",
                "controller.envFrom[0].prefix=A",
                "controller.resources.limits.memory=1Gi",
                "controller.extraVolumeMounts[0].name=v",
                "controller.sidecarContainer[0].name=s",
                "controller.metrics.port=9",
                "controller.healthProbe.port=9",
                "logLevel=debug",
                "settings.batchMaxDuration=9s",
                "settings.batchIdleDuration=9s",
                "settings.preferencePolicy=Ignore",
                "settings.minValuesPolicy=BestEffort",
                "settings.schedulerConfig=x",
                "settings.featureGates.nodeOverlay=true",
                "settings.featureGates.capacityBuffer=true",
                "proxy.httpsProxy=http://p",
                "proxy.httpProxy=http://p",
                "proxy.noProxy=n",
                "proxy.existingSecret=s",
                "replicaCount=3",
                "image.repository=r",
                "image.tag=t",
                "image.pullPolicy=Always",
                "resources.limits.cpu=1",
                "featureGates.NodeRepair=true",
                "metrics.serviceMonitor.enabled=true",
                "credentials.additionalSecrets[0].name=s",
            ],
        ),
        (
            "ovhcloud",
            &[
                "ovh.endpoint=ovh-ca",
                "ovh.kubeId=k",
                "ovh.region=r",
                "ovh.subsidiary=CA",
                "ovh.maxNodePools=5",
                "ovh.apiRateLimit=5",
                "ovh.maxNodesPerPool=5",
                "ovh.settings.emptyPoolTtl=1m",
                "credentials.secretName=n",
                "credentials.secretNamespace=n",
                "credentials.create=true,credentials.clientId=i,credentials.clientSecret=s",
                "credentials.create=true,credentials.applicationKey=k,credentials.applicationSecret=s,credentials.consumerKey=c",
                "credentials.additionalSecrets[0].namespace=n,credentials.additionalSecrets[0].name=s",
                "serviceMonitor.enabled=true,serviceMonitor.interval=9s",
                "serviceMonitor.enabled=true,serviceMonitor.additionalLabels.a=b",
                "serviceMonitor.enabled=true,serviceMonitor.scrapeTimeout=9s",
                "affinity.nodeAffinity=null",
                "priorityClassName=p",
            ],
        ),
        (
            "cloudstack",
            &[
                "clusterName=other",
                "cloudstack.existingSecret=s",
                "cloudstack.apiUrl=https://c/client/api",
                "cloudstack.verifySSL=false",
                "cloudstack.caBundle=x",
                "cloudstack.project=p",
                "cloudstack.domainId=d",
                "cloudstack.account=a",
                "cloudstack.region=r",
                "cloudstack.bootstrapTokens=true",
                "webhook.enabled=true",
                "webhook.enabled=true,webhook.port=9443",
                "cloudstack.settings.httpTimeout=9s",
                "cloudstack.settings.vmMemoryOverheadPercent=0.1",
            ],
        ),
        (
            "bizflycloud",
            &[
                "bizflycloud.region=HCM",
                "bizflycloud.zone=HN1",
                "bizflycloud.projectID=p",
                "bizflycloud.apiEndpoint=https://b/api",
                "bizflycloud.authMethod=password",
                "bizflycloud.existingSecret=s",
                "bizflycloud.settings.createTimeout=9m",
                "bke.clusterID=c",
                "bke.existingTokenSecret=s",
                "bke.existingTokenSecret=s,bke.tokenSecretKey=k",
                "bke.joinEndpoint=j",
                "bke.logEndpoint=l",
                "bke.kubernetesVersion=v1.33.1",
                "providerConfig.create=false",
                "compat.provisioner.enabled=true",
            ],
        ),
    ];
    for (provider, sets) in of_providers {
        let file = values(provider);
        let plain = helm.template(&["--values", &file])?;
        for set in sets {
            let rendered = helm.template(&["--values", &file, "--set", set])?;
            // What the last value changes beyond those before it, unless they make no sense without it.
            let without = set.rsplit_once(',').map(|(others, _)| others);
            let without = without.and_then(|others| helm.template(&["--values", &file, "--set", others]).ok());
            ensure!(
                rendered != without.unwrap_or_else(|| plain.clone()),
                "{provider}: --set {set} changes nothing"
            );
        }
    }
    Ok(())
}

/// Credentials of every provider, each with a value that is looked for everywhere.
fn secrets() -> Result<()> {
    let helm = Helm::obtain()?;
    // What is filled in, and what names a Secret instead.
    let filled = [
        (
            format!(
                "clusterName=c,cloudstack.apiUrl=https://c/client/api,cloudstack.apiKey={CANARY},cloudstack.secretKey={CANARY}"
            ),
            "cloudstack.existingSecret=s",
        ),
        (
            format!(
                "ovh.serviceName=0123456789abcdef0123456789abcdef,credentials.create=true,\
                 credentials.applicationKey={CANARY},credentials.applicationSecret={CANARY},\
                 credentials.consumerKey={CANARY},credentials.clientId={CANARY},credentials.clientSecret={CANARY}"
            ),
            "credentials.create=false",
        ),
        (
            format!("bizflycloud.region=HN,bizflycloud.email={CANARY},bizflycloud.password={CANARY}"),
            "bizflycloud.existingSecret=s",
        ),
        (
            format!(
                "bizflycloud.region=HN,bizflycloud.appCredentialID={CANARY},\
                 bizflycloud.appCredentialSecret={CANARY},providerConfig.create=false"
            ),
            "bizflycloud.existingSecret=s",
        ),
    ];
    for (set, existing) in &filled {
        let mut arguments = vec!["--set", set, "--set", "alerts.enabled=true,serviceMonitor.enabled=true"];
        arguments.extend(EXTRAS);
        let rendered = helm.template(&arguments)?;
        let (secret, others): (Vec<_>, Vec<_>) = world::documents(&rendered)?
            .into_iter()
            .partition(|object| object.types.as_ref().is_some_and(|types| types.kind == "Secret"));
        // The webhook's certificate is in another one.
        let holders = secret.iter().filter(|object| object.data.to_string().contains(CANARY));
        let holders = holders.count();
        ensure!(
            holders == 1,
            "--set {set}: one Secret is expected to hold the value, not {holders}"
        );
        for object in others {
            let kind = object
                .types
                .as_ref()
                .map(|types| types.kind.clone())
                .unwrap_or_default();
            ensure!(
                !serde_json::to_string(&object)?.contains(CANARY),
                "--set {set}: the value is in a {kind}"
            );
        }
        // With a Secret of the user's, the chart makes none.
        let rendered = helm.template(&["--set", set, "--set", existing])?;
        ensure!(
            !rendered.contains(CANARY),
            "--set {set}: an existing Secret is preferred"
        );
    }
    Ok(())
}

/// The manifests of every provider, with all that is off by default.
fn with_extras() -> Result<Vec<(&'static str, String)>> {
    let helm = Helm::obtain()?;
    let mut manifests = Vec::new();
    for provider in PROVIDERS {
        let file = values(provider);
        let mut arguments = vec!["--values", file.as_str()];
        arguments.extend(EXTRAS);
        manifests.push((provider, helm.template(&arguments)?));
    }
    Ok(manifests)
}

async fn dry_run(environment: &mut Environment) -> Result<()> {
    let client = environment.control_plane.admin().await?;
    crds::install(&client, &environment.karpenter).await?;
    world::apply(&client, "apiVersion: v1\nkind: Namespace\nmetadata: {name: karpenter}").await?;
    for (provider, rendered) in aside(with_extras).await? {
        world::dry_run(&client, &rendered)
            .await
            .with_context(|| format!("the manifests for {provider}"))?;
    }
    Ok(())
}
