//! The client on the wire: signatures, clocks, pages, throttling, lost servers.

use std::time::Duration;

use jiff::SignedDuration;
use karpenter_cloud::{
    clock::{Clock, ManualClock},
    http::Redactor,
};
use karpenter_cloudstack::{
    ProviderSettings,
    client::{ApiError, Class, Client, Keys, Priority, Request, metrics::ApiMetrics, model::Zone},
    credentials,
    settings::Switch,
    sim::{Fault, FaultKind, Seed, Settings, Simulator, seed},
};

struct Wire {
    simulator: Simulator,
    clock: ManualClock,
}

impl Wire {
    async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        let clock = ManualClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a moment"));
        let mut seed = Seed::default();
        change(&mut seed.settings);
        let simulator = Simulator::start(clock.clock(), seed).await.expect("a free port");
        let ticking = clock.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ticking.advance(Duration::from_millis(50));
            }
        });
        Self { simulator, clock }
    }

    fn client(&self) -> Client {
        self.client_of(self.simulator.keys(seed::ACCOUNT), self.clock.clock())
    }

    fn client_of(&self, keys: Keys, clock: Clock) -> Client {
        let mut http = ProviderSettings::new("blue").http;
        http.rate.per_second = 1000.0;
        Client::new(clock, http, keys, Redactor::default(), ApiMetrics::new()).expect("a client")
    }

    fn statuses(&self) -> Vec<u16> {
        self.simulator.calls().iter().map(|call| call.status).collect()
    }
}

async fn zones(client: &Client) -> Result<Vec<Zone>, ApiError> {
    client
        .list(&Request::new("listZones"), "zone", Priority::Discovery)
        .await
}

#[tokio::test]
async fn a_wrong_secret_is_refused_and_not_mistaken_for_a_wrong_clock() {
    let wire = Wire::start(|_| {}).await;
    let client = wire.client();
    assert_eq!(zones(&client).await.expect("signed").len(), 2);
    wire.simulator
        .operate(|operator| operator.set_secret(seed::ACCOUNT, "changed"));
    let error = zones(&client).await.expect_err("a wrong secret");
    assert_eq!(error.class(), Some(&Class::Auth));
}

#[tokio::test]
async fn a_slow_clock_is_learned_without_a_date_header() {
    let wire = Wire::start(|settings| settings.clock_ahead = SignedDuration::from_mins(20)).await;
    let client = wire.client();
    assert_eq!(zones(&client).await.expect("it goes without expiry").len(), 2);
    // A job tells the server's time.
    let tags = Request::new("createTags")
        .with("resourcetype", "UserVm")
        .with("resourceids", "x");
    let job = client.call(&tags, Priority::Launch).await.expect("accepted");
    let job = job.text("jobid").expect("a job").to_owned();
    while client
        .job(&job, Priority::Launch)
        .await
        .expect("a job")
        .completed
        .is_none()
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = wire.simulator.calls().len();
    zones(&client).await.expect("signed with an expiry again");
    let after = wire.simulator.calls()[before..].to_vec();
    let accepted: Vec<(u16, bool)> = after
        .iter()
        .map(|call| (call.status, call.params.contains_key("expires")))
        .collect();
    assert_eq!(accepted, [(200, true)], "the offset is known, no try is wasted");
}

#[tokio::test]
async fn a_fast_clock_is_learned_from_a_date_header_under_enforcement() {
    let wire = Wire::start(|settings| {
        settings.enforce_post_and_timestamps = true;
        settings.date_header = true;
        settings.clock_ahead = SignedDuration::from_mins(-20);
    })
    .await;
    let client = wire.client();
    assert_eq!(zones(&client).await.expect("the second try counts").len(), 2);
    zones(&client).await.expect("learned");
    assert_eq!(wire.statuses(), [401, 200, 200]);
}

#[tokio::test]
async fn a_throttled_request_waits_as_long_as_the_server_says() {
    let wire = Wire::start(|settings| settings.throttling = Some((Duration::from_secs(1), 4))).await;
    let client = wire.client();
    for _ in 0..3 {
        zones(&client).await.expect("in the end");
    }
    let calls = wire.simulator.calls();
    let refused = calls
        .iter()
        .position(|call| call.status == 429)
        .expect("the third is too much");
    let waited = calls[refused + 1].at.duration_since(calls[refused].at);
    assert!(waited >= SignedDuration::from_millis(100), "{waited}");
    assert_eq!(calls[refused + 1].status, 200, "one wait is enough");
    let violations = wire.simulator.violations();
    assert!(
        violations.len() == 1 && violations[0].ends_with("above its rate limit"),
        "the simulator sees it too: {violations:?}"
    );
}

#[tokio::test]
async fn an_announced_limit_slows_the_client_down() {
    let wire = Wire::start(|settings| settings.throttling = Some((Duration::from_secs(1), 10))).await;
    let client = wire.client();
    client.capabilities().await.expect("an answer");
    for _ in 0..12 {
        zones(&client).await.expect("an answer");
    }
    let throttled = wire.statuses().iter().filter(|status| **status == 429).count();
    assert!(throttled <= 1, "{throttled} requests were throttled");
}

#[tokio::test]
async fn a_server_with_small_pages_is_listed_completely() {
    let wire = Wire::start(|settings| {
        settings.page_size = 1;
        settings.unlimited_pages = false;
    })
    .await;
    let client = wire.client();
    assert_eq!(zones(&client).await.expect("a list").len(), 2);
    let before = wire.simulator.calls().len();
    zones(&client).await.expect("a list");
    let sizes: Vec<String> = wire.simulator.calls()[before..]
        .iter()
        .map(|call| call.params["pagesize"].clone())
        .collect();
    let twice = ["-1", "1", "1", "1", "1", "1", "1"];
    assert_eq!(
        sizes, twice,
        "the page size is remembered, and pages count when they are the same twice"
    );
}

#[tokio::test]
async fn reads_are_repeated_and_changes_are_not() {
    let wire = Wire::start(|_| {}).await;
    let client = wire.client();
    wire.simulator
        .inject(Fault::everything(FaultKind::ResetBefore).times(2));
    zones(&client).await.expect("the third try");
    wire.simulator.inject(Fault::everything(FaultKind::LoseAnswer).times(1));
    let tags = Request::new("createTags")
        .with("resourcetype", "UserVm")
        .with("resourceids", "x");
    let error = client.call(&tags, Priority::Launch).await.expect_err("no answer");
    assert!(matches!(error, ApiError::Unknown(_)), "{error}");
    let sent = wire
        .simulator
        .calls()
        .iter()
        .filter(|call| call.command == "createTags")
        .count();
    assert_eq!(sent, 1);
}

#[tokio::test]
async fn a_command_that_is_missing_or_forbidden_is_told_from_wrong_keys() {
    let wire = Wire::start(|_| {}).await;
    let client = wire.client();
    for (command, class) in [
        ("listHosts", Class::Forbidden),
        ("quotaTariffList", Class::Unsupported),
        ("noSuchCommand", Class::Unsupported),
    ] {
        let error = client
            .call(&Request::new(command), Priority::Discovery)
            .await
            .expect_err("refused");
        assert_eq!(error.class(), Some(&class), "{command}");
    }
}

#[tokio::test]
async fn new_keys_are_tried_before_they_are_used() {
    let wire = Wire::start(|_| {}).await;
    let client = wire.client();
    let mut wrong = wire.simulator.keys(seed::ACCOUNT);
    wrong.secret_key = "nonsense-nonsense".to_owned().into();
    credentials::rotate(&client, wrong, Switch::Off)
        .await
        .expect_err("they do not work");
    zones(&client).await.expect("the old ones stay");
    let other = wire.simulator.keys("other");
    let error = credentials::rotate(&client, other.clone(), Switch::Off)
        .await
        .expect_err("another account");
    assert!(error.to_string().contains("CLOUDSTACK_ALLOW_ACCOUNT_CHANGE"), "{error}");
    credentials::rotate(&client, other, Switch::On).await.expect("meant");
}

#[tokio::test]
async fn a_form_that_is_too_large_is_our_size_error() {
    let wire = Wire::start(|_| {}).await;
    let request = Request::new("deployVirtualMachine").with("userdata", "x".repeat(1_100_000));
    let error = wire
        .client()
        .call(&request, Priority::Launch)
        .await
        .expect_err("too large");
    assert_eq!(error.class(), Some(&Class::UserDataTooLong));
}

#[tokio::test]
async fn a_wait_that_the_server_names_is_kept_to() {
    let wire = Wire::start(|_| {}).await;
    let text = "The given user has reached his/her account api limit, please retry after [700] ms.";
    wire.simulator
        .inject(Fault::everything(FaultKind::Refuse(429, text.to_owned())).times(1));
    zones(&wire.client()).await.expect("in the end");
    let calls = wire.simulator.calls();
    assert_eq!(wire.statuses(), [429, 200]);
    let waited = calls[1].at.duration_since(calls[0].at);
    assert!(waited >= SignedDuration::from_millis(700), "{waited}");
}

#[tokio::test]
async fn a_list_that_changes_between_its_pages_is_read_again() {
    let wire = Wire::start(|settings| {
        settings.page_size = 1;
        settings.unlimited_pages = false;
    })
    .await;
    let client = wire.client();
    // The whole list is refused, then come page 1 and page 2; the latter waits for us.
    let hour = Duration::from_secs(3600);
    wire.simulator
        .inject(Fault::new("listZones", FaultKind::Slow(hour)).after(2).times(1));
    let reading = tokio::spawn(async move { zones(&client).await });
    while wire.simulator.calls().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    wire.simulator.operate(|operator| {
        let zones = &mut operator.catalogue().zones;
        zones.push(seed::zone("zone-0"));
        zones.rotate_right(1);
    });
    // Time runs far ahead until the request that waits is answered.
    while !reading.is_finished() {
        wire.clock.advance(hour);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let read = reading.await.expect("no panic").expect("a list");
    let mut names: Vec<String> = read.into_iter().map(|zone| zone.name).collect();
    names.sort();
    assert_eq!(names, ["zone-0", "zone-1", "zone-2"], "never short");
}

#[tokio::test]
async fn what_follows_an_entry_that_went_between_two_pages_is_not_skipped() {
    let wire = Wire::start(|settings| {
        settings.page_size = 1;
        settings.unlimited_pages = false;
    })
    .await;
    wire.simulator
        .operate(|operator| operator.catalogue().zones.push(seed::zone("zone-3")));
    let client = wire.client();
    zones(&client).await.expect("the page size is learned");
    let before = wire.simulator.calls().len();
    // The whole list is refused, then comes page 1; page 2 waits for us.
    let hour = Duration::from_secs(3600);
    wire.simulator
        .inject(Fault::new("listZones", FaultKind::Slow(hour)).after(2).times(1));
    let reading = tokio::spawn(async move { zones(&client).await });
    while wire.simulator.calls().len() < before + 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    wire.simulator.operate(|operator| {
        let zones = &mut operator.catalogue().zones;
        zones.remove(0);
        zones.push(seed::zone("zone-4"));
    });
    while !reading.is_finished() {
        wire.clock.advance(hour);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let read = reading.await.expect("no panic").expect("a list");
    let names: Vec<String> = read.into_iter().map(|zone| zone.name).collect();
    assert_eq!(names, ["zone-2", "zone-3", "zone-4"], "although as many went as came");
}

#[tokio::test]
async fn answers_that_are_odd_but_right_are_read() {
    let wire = Wire::start(|_| {}).await;
    let client = wire.client();
    for kind in [
        FaultKind::ControlCharacter,
        FaultKind::SlowBody(Duration::from_secs(5)),
        FaultKind::Miscount(-1),
        FaultKind::Omit("networktype"),
    ] {
        wire.simulator.inject(Fault::new("listZones", kind.clone()).times(1));
        let read = zones(&client).await.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert_eq!(read.len(), 2, "{kind:?}");
    }
}

#[tokio::test]
async fn a_list_with_an_entry_twice_or_a_count_that_is_not_reached_is_read_again() {
    let wire = Wire::start(|_| {}).await;
    let client = wire.client();
    for kind in [FaultKind::RepeatEntry, FaultKind::Miscount(1)] {
        wire.simulator.inject(Fault::new("listZones", kind.clone()).times(2));
        let mut names: Vec<String> = zones(&client)
            .await
            .expect("a list")
            .into_iter()
            .map(|own| own.name)
            .collect();
        names.sort();
        assert_eq!(names, ["zone-1", "zone-2"], "{kind:?}");
    }
    wire.simulator.inject(Fault::new("listZones", FaultKind::Miscount(1)));
    let error = zones(&client).await.expect_err("never complete");
    assert!(
        error.to_string().contains("the list changed each of the 4 times"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_fails_now_and_then_is_asked_again() {
    let wire = Wire::start(|_| {}).await;
    let client = wire.client();
    wire.simulator
        .inject(Fault::everything(FaultKind::Page(503)).one_in(3, 7));
    for _ in 0..20 {
        zones(&client).await.expect("in the end");
    }
    assert_eq!(wire.simulator.calls().len(), 20, "what was hit was not carried out");
}

#[tokio::test]
async fn an_expiry_of_sixteen_minutes_is_refused_under_enforcement_and_ten_are_taken() {
    let wire = Wire::start(|settings| settings.enforce_post_and_timestamps = true).await;
    // Six minutes ahead of the server: our ten minutes are its sixteen.
    wire.simulator
        .operate(|operator| operator.settings().clock_ahead = SignedDuration::from_mins(-6));
    let error = zones(&wire.client()).await.expect_err("too far ahead");
    assert_eq!(error.class(), Some(&Class::Auth));
    wire.simulator
        .operate(|operator| operator.settings().clock_ahead = SignedDuration::ZERO);
    assert_eq!(zones(&wire.client()).await.expect("accepted").len(), 2);
}

#[tokio::test]
async fn terminations_pass_launches_and_launches_pass_discovery_in_the_queue() {
    // A clock that stands still: who comes first is not decided by how long anything takes.
    let clock = ManualClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a moment"));
    let simulator = Simulator::start(clock.clock(), Seed::default())
        .await
        .expect("a free port");
    let mut http = ProviderSettings::new("blue").http;
    http.rate.per_second = 1.0;
    http.rate.burst = 1;
    let keys = simulator.keys(seed::ACCOUNT);
    let client = Client::new(clock.clock(), http, keys, Redactor::default(), ApiMetrics::new()).expect("a client");
    zones(&client).await.expect("takes the only token");
    let ask = async |command: &'static str, priority: Priority| {
        client.call(&Request::new(command), priority).await.expect("an answer");
    };
    let asked = async {
        tokio::join!(
            ask("listNetworks", Priority::Discovery),
            ask("listServiceOfferings", Priority::Launch),
            ask("listVirtualMachines", Priority::Termination),
        )
    };
    // A second at a time, each after the call that it lets through has arrived.
    let time = async {
        for arrived in 2.. {
            clock.advance(Duration::from_millis(1100));
            while simulator.calls().len() < arrived {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    tokio::select! {
        biased;
        _ = asked => {}
        () = time => unreachable!("time does not end"),
    }
    let order: Vec<String> = simulator.calls().into_iter().skip(1).map(|call| call.command).collect();
    assert_eq!(order, ["listVirtualMachines", "listServiceOfferings", "listNetworks"]);
}
