//! Answers requests: checks who asks, finds what is asked for, and misbehaves when told to.

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use http::{HeaderMap, Method, Uri};
use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{
    APPLICATION_KEY, APPLICATION_SECRET, CLIENT_ID, CLIENT_SECRET, CONSUMER_KEY, SERVICE_NAME,
    faults::Effect,
    state::{Recorded, SimState},
};
use crate::{catalogue::flavors, client::sign, rights};

/// A request as it arrived.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// An answer about to be sent.
#[derive(Debug)]
pub(super) struct Reply {
    status: u16,
    body: String,
    headers: Vec<(&'static str, String)>,
    reset: bool,
}

/// Our clock and the API's may differ by this many seconds.
const TOLERANCE: i64 = 60;
const TOKEN_LIFE: u64 = 3600;

/// Prices per hour of some flavors, in 10⁻⁸: those that tests and the demo look at.
const PRICES: [(&str, i64); 14] = [
    ("b2-7", 7_000_000),
    ("b2-15", 13_000_000),
    ("b2-30", 26_000_000),
    ("b2-60", 51_000_000),
    ("b2-120", 99_000_000),
    ("b3-8", 5_000_000),
    ("b3-16", 10_000_000),
    ("b3-32", 20_000_000),
    ("t1-45", 70_000_000),
    ("a10-45", 76_000_000),
    ("l4-90", 75_000_000),
    ("l40s-90", 140_000_000),
    ("a100-180", 275_000_000),
    ("h100-380", 280_000_000),
];

pub(super) fn answer(state: &mut SimState, request: &Request, now: Timestamp) -> Reply {
    state.queries += 1;
    let query = format!("EU.ext-1.{:08x}", state.queries);
    let full = request.uri.path();
    let path = full.strip_prefix("/1.0").unwrap_or(full).to_owned();
    let fault = take_fault(state, request, &path);
    let mut reply = match &fault {
        Some(Effect::Answer(status, body)) => Reply::text(*status, body),
        Some(Effect::AnswerWith(status, body, header)) => {
            let mut reply = Reply::text(*status, body);
            reply.headers.push(header.clone());
            reply
        }
        Some(Effect::Reset | Effect::AnswerAfter(..)) | None => dispatch(state, request, &path, now),
    };
    match fault {
        Some(Effect::Reset) => reply.reset = true,
        Some(Effect::AnswerAfter(status, body)) => reply = Reply::text(status, &body),
        _ => {}
    }
    reply.headers.push(("x-ovh-queryid", query));
    state.requests.push(Recorded {
        at: now,
        method: request.method.clone(),
        path: request.uri.to_string(),
        body: serde_json::from_slice(&request.body).unwrap_or_default(),
        status: reply.status,
        signed: request.headers.contains_key("x-ovh-signature"),
        consumer: request
            .headers
            .get("x-ovh-consumer")
            .and_then(|own| own.to_str().ok())
            .map(str::to_owned),
    });
    reply
}

fn take_fault(state: &mut SimState, request: &Request, path: &str) -> Option<Effect> {
    let matches = |own: &super::HttpFault| own.method == request.method && path.contains(&own.path);
    let mut met = None;
    for (index, fault) in state.faults.iter_mut().enumerate() {
        if !matches(fault) {
            continue;
        }
        if fault.skip > 0 {
            fault.skip -= 1;
            continue;
        }
        met = Some(index);
        break;
    }
    let index = met?;
    let effect = state.faults[index].effect.clone();
    if let Some(times) = &mut state.faults[index].times {
        *times -= 1;
        if *times == 0 {
            state.faults.remove(index);
        }
    }
    Some(effect)
}

fn dispatch(state: &mut SimState, request: &Request, path: &str, now: Timestamp) -> Reply {
    match path {
        "/auth/time" => return Reply::json(200, &json!(now.as_second() + state.world.skew)),
        "/auth/oauth2/token" => return token(state, request, now),
        "/auth/credential" if request.method == Method::POST => return new_key(request),
        "/_sim/state" => return Reply::json(200, &told(state)),
        "/_sim/requests" => return Reply::json(200, &told_requests(state)),
        "/order/catalog/public/cloud" => {
            let query = request.uri.query().unwrap_or_default();
            if !["FR", "CA", "US"]
                .iter()
                .any(|own| query == format!("ovhSubsidiary={own}"))
            {
                return Reply::json(
                    400,
                    &json!({"class": "Client::BadRequest", "message": "unknown subsidiary"}),
                );
            }
            return Reply::json(200, &catalog(state));
        }
        _ => {}
    }
    if let Err(refusal) = admit(state, request, path, now) {
        return refusal;
    }
    if path == "/auth/currentCredential" {
        let mut rules: Vec<Value> = state
            .world
            .rules
            .iter()
            .map(|(method, path)| json!({"method": method, "path": path}))
            .collect();
        if rules.is_empty() {
            rules.extend(["GET", "POST", "PUT", "DELETE"].map(|method| json!({"method": method, "path": "/*"})));
        }
        let expiration = state.key_expires.map(|at| at.to_string());
        return Reply::json(
            200,
            &json!({"credentialId": 1, "expiration": expiration, "rules": rules, "allowedIPs": null, "status": "validated"}),
        );
    }
    let project = format!("/cloud/project/{SERVICE_NAME}");
    let Some(rest) = path.strip_prefix(&project) else {
        return unknown(state, path);
    };
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    let kube = state.world.kube_id.clone();
    let region = state.world.region.clone();
    match (&request.method, parts.as_slice()) {
        (&Method::GET, ["kube"]) => Reply::json(200, &json!([kube])),
        (&Method::GET, ["capabilities", "kube", "regions"]) => Reply::json(200, &json!([region])),
        (&Method::GET, ["capabilities", "kube", "flavors"]) => Reply::json(200, &shown_flavors(state, |_| true)),
        (&Method::GET, ["flavor"]) => Reply::json(200, &project_flavors(state)),
        (&Method::GET, ["region", own]) if *own == region => {
            let kind = if state.world.zones.is_empty() {
                "region"
            } else {
                "region-3-az"
            };
            Reply::json(
                200,
                &json!({"name": region, "type": kind, "status": "UP", "availabilityZones": state.world.zones}),
            )
        }
        (&Method::GET, ["region", own, "quota"]) if *own == region => Reply::json(
            200,
            &json!({"region": region, "instance": {"maxCores": state.world.cores.unwrap_or(10_000),
                "usedCores": state.cores_used(), "maxInstances": 10_000, "usedInstances": state.nodes.len(), "maxRam": 10_000_000, "usedRAM": 0}}),
        ),
        (_, ["kube", own, ..]) if *own != kube => {
            Reply::json(404, &json!({"class": "Client::NotFound", "message": "no such cluster"}))
        }
        (&Method::GET, ["kube", _]) => Reply::json(200, &cluster(state)),
        (&Method::GET, ["kube", _, "node"]) => nodes(state, request, None),
        (&Method::DELETE, ["kube", _, "node", id]) => match state.delete_node(id) {
            Ok(()) => Reply::text(200, "null"),
            Err((status, body)) => Reply::json(status, &body),
        },
        (&Method::GET, ["kube", _, "flavors"]) => {
            let lacking = &state.cluster_lacks;
            let shown = shown_flavors(state, |own| !lacking.contains(&own.name));
            Reply::json(200, &shown)
        }
        (_, ["kube", _, "nodepool", rest @ ..]) => pools(state, request, rest, now),
        _ => unknown(state, path),
    }
}

fn pools(state: &mut SimState, request: &Request, rest: &[&str], now: Timestamp) -> Reply {
    let visible = |state: &SimState, id: &str| state.pools.get(id).filter(|pool| pool.visible_at <= now).cloned();
    match (&request.method, rest) {
        (&Method::GET, []) => {
            let shown: Vec<Value> = state
                .pools
                .values()
                .filter(|pool| pool.visible_at <= now)
                .map(|pool| state.shown(pool))
                .collect();
            Reply::json(200, &json!(shown))
        }
        (&Method::POST, []) => match serde_json::from_slice::<Incoming>(&request.body) {
            Ok(new) => match state.create_pool(&new.into()) {
                Ok(pool) => Reply::json(200, &pool),
                Err((status, body)) => Reply::json(status, &body),
            },
            Err(error) => Reply::json(
                400,
                &json!({"class": "Client::BadRequest", "message": error.to_string()}),
            ),
        },
        (&Method::GET, [id]) => match visible(state, id) {
            Some(pool) => Reply::json(200, &state.shown(&pool)),
            None => not_found(),
        },
        (&Method::GET, [id, "nodes"]) => match visible(state, id) {
            Some(pool) => nodes(state, request, Some(&pool.id)),
            None => not_found(),
        },
        (&Method::PUT, [id]) => match serde_json::from_slice::<IncomingUpdate>(&request.body) {
            Ok(update) => match state.update_pool(id, &update.into()) {
                // Its body is not documented; all of these were seen.
                Ok(()) => match state.queries % 3 {
                    0 => Reply::text(200, ""),
                    1 => Reply::text(200, "null"),
                    _ => Reply::json(200, &json!({"id": id})),
                },
                Err((status, body)) => Reply::json(status, &body),
            },
            Err(error) => Reply::json(
                400,
                &json!({"class": "Client::BadRequest", "message": error.to_string()}),
            ),
        },
        (&Method::DELETE, [id]) => match state.delete_pool(id) {
            Ok(()) => Reply::text(200, "null"),
            Err((status, body)) => Reply::json(status, &body),
        },
        _ => unknown(state, request.uri.path()),
    }
}

/// The nodes of a pool, or of all.
fn nodes(state: &SimState, request: &Request, pool: Option<&str>) -> Reply {
    let is_asked = |node: &&super::SimNode| pool.is_none_or(|pool| node.pool == pool);
    let mut shown: Vec<&super::SimNode> = state.nodes.values().filter(is_asked).collect();
    shown.sort_by(|a, b| a.id.cmp(&b.id));
    let cursor = request
        .headers
        .get("x-pagination-cursor")
        .and_then(|own| own.to_str().ok());
    let start: usize = cursor.and_then(|own| own.parse().ok()).unwrap_or(0);
    let page = if state.world.page == 0 {
        shown.len().max(1)
    } else {
        state.world.page
    };
    let end = (start + page).min(shown.len());
    let listed: Vec<Value> = shown[start.min(end)..end]
        .iter()
        .map(|node| state.shown_node(node))
        .collect();
    let mut reply = Reply::json(200, &json!(listed));
    if end < shown.len() {
        reply.headers.push(("x-pagination-cursor-next", end.to_string()));
    }
    reply
}

/// Checks keys, time, signature or token, and rights.
fn admit(state: &SimState, request: &Request, path: &str, now: Timestamp) -> Result<(), Reply> {
    let header = |name: &str| {
        request
            .headers
            .get(name)
            .and_then(|own| own.to_str().ok())
            .unwrap_or_default()
    };
    let refuse = |status: u16, code: &str, message: &str| {
        Reply::json(
            status,
            &json!({"errorCode": code, "httpCode": format!("{status}"), "message": message}),
        )
    };
    if let Some(token) = header("authorization").strip_prefix("Bearer ") {
        return match state.tokens.get(token) {
            Some(until) if now < *until && !state.key_revoked => Ok(()),
            _ => Err(Reply::json(
                401,
                &json!({"class": "Client::Unauthorized", "message": "invalid token"}),
            )),
        };
    }
    if header("x-ovh-application") != APPLICATION_KEY {
        return Err(refuse(403, "INVALID_KEY", "This application key is invalid"));
    }
    let has_expired = state.key_expires.is_some_and(|at| at <= now);
    let consumer = header("x-ovh-consumer");
    let is_usual = consumer == CONSUMER_KEY && !state.key_revoked && !has_expired;
    if !is_usual && !state.more_keys.iter().any(|own| own == consumer) {
        return Err(refuse(403, "NOT_CREDENTIAL", "This credential does not exist"));
    }
    let timestamp: i64 = header("x-ovh-timestamp").parse().unwrap_or(0);
    if (timestamp - (now.as_second() + state.world.skew)).abs() > TOLERANCE {
        return Err(refuse(400, "QUERY_TIME_OUT", "Query out of time"));
    }
    let url = format!("http://{}{}", header("host"), request.uri);
    let expected = sign::signature(
        APPLICATION_SECRET,
        consumer,
        request.method.as_str(),
        &url,
        &request.body,
        timestamp,
    );
    if header("x-ovh-signature") != expected {
        return Err(refuse(401, "INVALID_SIGNATURE", "Invalid signature"));
    }
    let granted = |(method, rule): &(String, String)| method == request.method.as_str() && rights::covers(rule, path);
    if !state.world.rules.is_empty() && !state.world.rules.iter().any(granted) {
        return Err(refuse(403, "NOT_GRANTED_CALL", "This call has not been granted"));
    }
    Ok(())
}

/// The flow that makes a key: somebody would open the address and agree; here it is agreed to at once.
fn new_key(request: &Request) -> Reply {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Asked {
        access_rules: Vec<crate::client::model::AccessRule>,
        #[serde(rename = "redirection")]
        _redirection: Option<String>,
        #[serde(default, rename = "allowedIPs")]
        _allowed_ips: Vec<String>,
    }
    let is_signed = request.headers.contains_key("x-ovh-signature");
    let application = request
        .headers
        .get("x-ovh-application")
        .and_then(|own| own.to_str().ok());
    if is_signed || application != Some(APPLICATION_KEY) {
        return Reply::json(
            403,
            &json!({"errorCode": "INVALID_KEY", "message": "This application key is invalid"}),
        );
    }
    match serde_json::from_slice::<Asked>(&request.body) {
        Ok(asked) if !asked.access_rules.is_empty() => Reply::json(
            200,
            &json!({"consumerKey": CONSUMER_KEY, "state": "pendingValidation",
                    "validationUrl": "https://www.ovh.test/auth/sso/api?credentialToken=sim"}),
        ),
        Ok(_) => Reply::json(
            400,
            &json!({"class": "Client::BadRequest", "message": "no access rules"}),
        ),
        Err(error) => Reply::json(
            400,
            &json!({"class": "Client::BadRequest", "message": error.to_string()}),
        ),
    }
}

/// What there is, for whoever watches the demo.
fn told(state: &SimState) -> Value {
    let pools: Vec<Value> = state.pools.values().map(|pool| state.shown(pool)).collect();
    let nodes: Vec<Value> = state.nodes.values().map(|node| state.shown_node(node)).collect();
    json!({"cluster": cluster(state), "pools": pools, "nodes": nodes, "peakPools": state.peak_pools})
}

fn told_requests(state: &SimState) -> Value {
    let requests = state.requests.iter().map(|own| {
        json!({"at": own.at.to_string(), "method": own.method.as_str(), "path": own.path, "body": own.body,
               "status": own.status})
    });
    requests.collect()
}

fn token(state: &mut SimState, request: &Request, now: Timestamp) -> Reply {
    let form = String::from_utf8_lossy(&request.body).into_owned();
    let is_known = form.contains("grant_type=client_credentials")
        && form.contains("scope=all")
        && form.contains(&format!("client_id={CLIENT_ID}"))
        && form.contains(&format!("client_secret={CLIENT_SECRET}"));
    if !is_known || state.key_revoked {
        return Reply::json(400, &json!({"error": "invalid_client"}));
    }
    let token = format!("token-{:08x}-secret", state.queries);
    let life = std::time::Duration::from_secs(TOKEN_LIFE);
    state.tokens.insert(token.clone(), later(now, life));
    Reply::json(
        200,
        &json!({"access_token": token, "token_type": "Bearer", "expires_in": TOKEN_LIFE, "scope": "all"}),
    )
}

fn cluster(state: &SimState) -> Value {
    json!({
        "id": state.world.kube_id, "name": "simulated", "region": state.world.region, "plan": state.world.plan,
        "version": "1.34.1-0", "status": state.cluster_status, "updatePolicy": "ALWAYS_UPDATE", "isUpToDate": true,
        "controlPlaneIsUpToDate": true, "nextUpgradeVersions": null, "url": "sim.c1.ovh.test", "nodesUrl": "sim-n.c1.ovh.test",
        "privateNetworkId": null, "nodesSubnetId": null, "kubeProxyMode": "iptables", "auditLogsSubscribed": false,
        "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z",
    })
}

fn shown_flavors(state: &SimState, has: impl Fn(&crate::client::model::Flavor) -> bool) -> Value {
    let flavors = state.world.flavors.iter().filter(|own| has(own)).map(|own| {
        json!({"name": own.name, "category": own.category, "state": own.state, "vCPUs": own.vcpus, "gpus": own.gpus,
               "ram": own.ram})
    });
    flavors.collect()
}

fn project_flavors(state: &SimState) -> Value {
    let flavors = state.world.flavors.iter().map(|own| {
        json!({"id": format!("uuid-{}", own.name), "name": own.name, "region": state.world.region, "vcpus": own.vcpus,
               "ram": own.ram, "disk": flavors::disk_gb(&own.name), "type": "ovh.ssd.eg", "osType": "linux",
               "available": true, "quota": 100})
    });
    flavors.collect()
}

fn catalog(state: &SimState) -> Value {
    let addon = |code: String, price: i64, product: &str| {
        json!({
            "planCode": code, "product": product, "invoiceName": code,
            "pricings": [{"price": price, "intervalUnit": "hour", "interval": 1, "mode": "default", "type": "consumption",
                          "phase": 1, "commitment": 0, "capacities": ["consumption"]}],
            "blobs": {"commercial": {"brick": "compute"}}, "configurations": [],
        })
    };
    let mut addons = vec![
        addon("win-b2-7.consumption".into(), 14_000_000, "publiccloud-instance"),
        addon("b2-7.option.consumption".into(), 1, "publiccloud-option"),
        addon("t1-45.monthly.postpaid".into(), 50_000_000_000, "publiccloud-instance"),
    ];
    for flavor in &state.world.flavors {
        let listed = PRICES
            .iter()
            .find(|(name, _)| *name == flavor.name)
            .map(|(_, price)| *price);
        let rate =
            i64::from(flavor.vcpus) * 2_000_000 + i64::from(flavor.ram) * 200_000 + i64::from(flavor.gpus) * 50_000_000;
        let price = listed.unwrap_or(rate);
        addons.push(addon(
            format!("{}.consumption", flavor.name),
            price,
            "publiccloud-instance",
        ));
        addons.push(addon(
            format!("{}.consumption.3AZ", flavor.name),
            price,
            "publiccloud-instance",
        ));
        if flavors::is_monthly_family(&flavor.name) {
            // About half the price of a month of hours.
            addons.push(addon(
                format!("{}.monthly.postpaid", flavor.name),
                price * 365,
                "publiccloud-instance",
            ));
        }
    }
    json!({"catalogId": 1, "locale": {"currencyCode": "EUR", "subsidiary": "FR"}, "plans": [], "addons": addons})
}

fn not_found() -> Reply {
    Reply::json(
        404,
        &json!({"class": "Client::NotFound", "message": "no such node pool"}),
    )
}

fn unknown(state: &mut SimState, path: &str) -> Reply {
    state.unknown_paths.push(path.to_owned());
    Reply::json(
        404,
        &json!({"class": "Client::NotFound", "message": format!("got an invalid URL: {path}")}),
    )
}

impl Reply {
    fn text(status: u16, body: &str) -> Self {
        Self {
            status,
            body: body.to_owned(),
            headers: Vec::new(),
            reset: false,
        }
    }

    fn json(status: u16, body: &Value) -> Self {
        Self::text(status, &body.to_string())
    }

    pub(super) fn into_response(self) -> Response {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(*name, value);
        }
        let body = if self.reset {
            // A body that ends in an error breaks the connection before anything was answered.
            Body::from_stream(futures::stream::once(async {
                Err::<Bytes, _>(std::io::Error::other("connection reset"))
            }))
        } else {
            Body::from(self.body)
        };
        response.body(body).expect("status and headers are valid")
    }
}

/// A new pool as it must be sent: nothing may be missing that the API requires.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Incoming {
    name: String,
    flavor_name: String,
    desired_nodes: u32,
    min_nodes: u32,
    max_nodes: u32,
    autoscale: bool,
    monthly_billed: bool,
    anti_affinity: bool,
    #[serde(default)]
    availability_zones: Vec<String>,
    #[serde(default)]
    attach_floating_ips: Option<crate::client::model::FloatingIps>,
    template: IncomingTemplate,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct IncomingTemplate {
    metadata: IncomingMetadata,
    spec: IncomingSpec,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct IncomingMetadata {
    labels: std::collections::BTreeMap<String, String>,
    annotations: std::collections::BTreeMap<String, String>,
    finalizers: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct IncomingSpec {
    taints: Vec<IncomingTaint>,
    unschedulable: bool,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct IncomingTaint {
    key: String,
    value: String,
    effect: String,
}

/// A change of a pool: fields that cannot be changed are refused.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IncomingUpdate {
    #[serde(default)]
    desired_nodes: Option<u32>,
    #[serde(default)]
    nodes_to_remove: Vec<String>,
    #[serde(default)]
    min_nodes: Option<u32>,
    #[serde(default)]
    max_nodes: Option<u32>,
    #[serde(default)]
    autoscale: Option<bool>,
}

impl From<Incoming> for crate::client::model::NewPool {
    fn from(own: Incoming) -> Self {
        use crate::client::model::{Template, TemplateMetadata, TemplateSpec, TemplateTaint};
        let taints = own.template.spec.taints.into_iter().map(|taint| TemplateTaint {
            key: taint.key,
            value: taint.value,
            effect: taint.effect,
        });
        Self {
            name: own.name,
            flavor_name: own.flavor_name,
            desired_nodes: own.desired_nodes,
            min_nodes: own.min_nodes,
            max_nodes: own.max_nodes,
            autoscale: own.autoscale,
            monthly_billed: own.monthly_billed,
            anti_affinity: own.anti_affinity,
            availability_zones: own.availability_zones,
            attach_floating_ips: own.attach_floating_ips,
            template: Template {
                metadata: TemplateMetadata {
                    labels: own.template.metadata.labels,
                    annotations: own.template.metadata.annotations,
                    finalizers: own.template.metadata.finalizers,
                },
                spec: TemplateSpec {
                    taints: taints.collect(),
                    unschedulable: own.template.spec.unschedulable,
                },
            },
        }
    }
}

impl From<IncomingUpdate> for crate::client::model::PoolUpdate {
    fn from(own: IncomingUpdate) -> Self {
        Self {
            desired_nodes: own.desired_nodes,
            nodes_to_remove: own.nodes_to_remove,
            min_nodes: own.min_nodes,
            max_nodes: own.max_nodes,
            autoscale: own.autoscale,
        }
    }
}
