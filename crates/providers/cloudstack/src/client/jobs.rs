//! Waits for asynchronous jobs: few of them one by one, many of them by one sweep over their machines (cloudstack.md §2.8).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use karpenter_cloud::clock::later;
use parking_lot::Mutex;
use rand::Rng;
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use super::{
    ApiError, Class, Client, Failure, Priority, Request, Told,
    model::{Job, VirtualMachine},
};

/// How a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum JobEnd {
    Succeeded(Box<Job>),
    Failed(Failure),
    /// The server does not know the job any more.
    Forgotten,
}

/// Waits for the jobs of launches; one poller for all of them.
#[derive(Clone)]
pub struct Jobs {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    longest_pause: Duration,
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    jobs: BTreeMap<String, Entry>,
    swept_at: Option<Timestamp>,
    poller: Option<JoinHandle<()>>,
}

struct Entry {
    machine: String,
    polls: usize,
    next_at: Timestamp,
    tell: oneshot::Sender<JobEnd>,
}

/// Pauses between the first polls; the last holds from then on.
const PAUSES: [u64; 6] = [1, 1, 2, 2, 3, 5];
/// More jobs than this are watched through their machines.
const ONE_BY_ONE: usize = 20;
/// A disk or a group is a matter of seconds; a job that hangs must not hold up everything else.
const PATIENCE: Duration = Duration::from_secs(60);
/// The client's own rate is the limit, not this.
const AT_ONCE: usize = 64;

impl Job {
    /// How it ended, if it did.
    pub fn end(&self, command: &str) -> Option<JobEnd> {
        match self.jobstatus.unwrap_or_default() {
            0 => None,
            1 => Some(JobEnd::Succeeded(Box::new(self.clone()))),
            _ => {
                let result = self.jobresult.as_ref();
                let text = result
                    .and_then(|result| result["errortext"].as_str())
                    .unwrap_or_default();
                let code = result.and_then(|result| result["errorcode"].as_i64());
                let code = code.or(self.jobresultcode).unwrap_or(530);
                let code = u16::try_from(code).unwrap_or(530);
                Some(JobEnd::Failed(Failure::new(command, code, text, Told::ByJob)))
            }
        }
    }
}

impl Jobs {
    pub fn new(client: Client, longest_pause: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                client,
                longest_pause,
                waiting: Mutex::default(),
                changed: Notify::new(),
            }),
        }
    }

    /// Waits until the job that works on `machine` has ended. Dropping the future stops waiting, not the job.
    pub async fn wait(&self, job: &str, machine: &str) -> JobEnd {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.shared.waiting.lock();
            let next_at = self.shared.next_at(0);
            let entry = Entry {
                machine: machine.to_owned(),
                polls: 0,
                next_at,
                tell,
            };
            waiting.jobs.insert(job.to_owned(), entry);
            if waiting.poller.as_ref().is_none_or(JoinHandle::is_finished) {
                let shared = self.shared.clone();
                waiting.poller = Some(tokio::spawn(async move { shared.poll_until_none_waits().await }));
            }
        }
        self.shared.changed.notify_one();
        // The sender is only dropped when another wait for the same job replaced it; then the job's state is unknown here.
        told.await.unwrap_or(JobEnd::Forgotten)
    }

    /// Waits for a job that works on no machine, or on one that runs already; `None` if it takes longer than such jobs may.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub async fn settle(&self, job: &str, command: &str, priority: Priority) -> Result<Option<JobEnd>, ApiError> {
        let clock = self.shared.client.clock();
        let deadline = later(clock.now(), PATIENCE);
        let mut polls = 0;
        loop {
            clock.sleep_until(self.shared.next_at(polls)).await;
            let end = self.look(job, command, priority).await?;
            if end.is_some() || clock.now() >= deadline {
                return Ok(end);
            }
            polls += 1;
        }
    }

    /// Reads a job once.
    ///
    /// # Errors
    /// When CloudStack could not be asked.
    pub async fn look(&self, job: &str, command: &str, priority: Priority) -> Result<Option<JobEnd>, ApiError> {
        match self.shared.client.job(job, priority).await {
            Ok(read) => Ok(read.end(command)),
            Err(error) if error.class() == Some(&Class::NotFound) => Ok(Some(JobEnd::Forgotten)),
            Err(error) => Err(error),
        }
    }
}

impl Shared {
    fn next_at(&self, polls: usize) -> Timestamp {
        let pause = Duration::from_secs(PAUSES[polls.min(PAUSES.len() - 1)]).min(self.longest_pause);
        let jitter = rand::rng().random_range(0.9..=1.1);
        later(self.client.clock().now(), pause.mul_f64(jitter))
    }

    async fn poll_until_none_waits(&self) {
        loop {
            let next = {
                let mut waiting = self.waiting.lock();
                waiting.jobs.retain(|_, entry| !entry.tell.is_closed());
                if waiting.jobs.is_empty() {
                    waiting.poller = None;
                    return;
                }
                let due = waiting.jobs.values().map(|entry| entry.next_at).min();
                let due = due.expect("there is a job");
                match waiting.swept_at {
                    Some(swept_at) if waiting.jobs.len() > ONE_BY_ONE => due.max(later(swept_at, self.longest_pause)),
                    Some(_) | None => due,
                }
            };
            let sleep = self.client.clock().sleep_until(next);
            tokio::select! {
                () = sleep => {}
                () = self.changed.notified() => continue,
            }
            self.poll_due().await;
        }
    }

    async fn poll_due(&self) {
        let now = self.client.clock().now();
        let (sweeps, due): (bool, Vec<(String, String)>) = {
            let mut waiting = self.waiting.lock();
            let sweeps = waiting.jobs.len() > ONE_BY_ONE;
            if sweeps {
                waiting.swept_at = Some(now);
            }
            let due = waiting.jobs.iter().filter(|(_, entry)| sweeps || entry.next_at <= now);
            let due = due.map(|(job, entry)| (job.clone(), entry.machine.clone())).collect();
            (sweeps, due)
        };
        let due = if sweeps { self.moved(due).await } else { due };
        stream::iter(due)
            .for_each_concurrent(AT_ONCE, |(job, _)| async move {
                match self.client.job(&job, Priority::Launch).await {
                    Ok(read) => match read.end("job") {
                        Some(end) => self.tell(&job, end),
                        None => self.later(&job),
                    },
                    Err(error) if error.class() == Some(&Class::NotFound) => self.tell(&job, JobEnd::Forgotten),
                    // The next poll asks again; the one who waits has a deadline of its own.
                    Err(_) => self.later(&job),
                }
            })
            .await;
    }

    /// Of many jobs, those whose machine left the states of a launch; the others wait for the next sweep.
    async fn moved(&self, due: Vec<(String, String)>) -> Vec<(String, String)> {
        let machines: Vec<&str> = due.iter().map(|(_, machine)| machine.as_str()).collect();
        let request = Request::new("listVirtualMachines")
            .with_list("ids", &machines)
            .with("details", "min")
            .with("listall", "true")
            .with("projectid", "-1");
        let read: Result<Vec<VirtualMachine>, ApiError> =
            self.client.list(&request, "virtualmachine", Priority::Launch).await;
        let Ok(read) = read else { return due };
        let (launching, moved): (Vec<_>, Vec<_>) = due.into_iter().partition(|(_, machine)| {
            let state = read.iter().find(|vm| vm.id == *machine).map(|vm| vm.state.as_str());
            matches!(state, Some("Starting" | "Stopped"))
        });
        for (job, _) in &launching {
            self.later(job);
        }
        moved
    }

    fn tell(&self, job: &str, end: JobEnd) {
        if let Some(entry) = self.waiting.lock().jobs.remove(job) {
            // Whoever went away does not need to know.
            let _ = entry.tell.send(end);
        }
    }

    fn later(&self, job: &str) {
        let mut waiting = self.waiting.lock();
        let sweeping = waiting.jobs.len() > ONE_BY_ONE;
        if let Some(entry) = waiting.jobs.get_mut(job) {
            entry.polls = if sweeping { PAUSES.len() } else { entry.polls + 1 };
            entry.next_at = self.next_at(entry.polls);
        }
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        // The poller holds one reference itself.
        if Arc::strong_count(&self.shared) <= 2
            && let Some(poller) = self.shared.waiting.lock().poller.take()
        {
            poller.abort();
        }
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("waiting", &self.shared.waiting.lock().jobs.len())
            .finish_non_exhaustive()
    }
}
