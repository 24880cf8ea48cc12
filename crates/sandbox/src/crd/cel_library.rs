//! The CEL environment of `x-kubernetes-validations`: the standard library, the string extensions, and the functions
//! that Kubernetes adds.

use std::sync::{Arc, LazyLock};

use cel::common::types::{CelBool, CelInt, CelList, CelString, DYN_TYPE, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError, Value};

use super::pattern::Pattern;

static ENVIRONMENT: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(build().expect("the built-in CEL functions don't clash")));

/// The one environment that all rules share.
pub(super) fn environment() -> &'static Arc<Env> {
    &ENVIRONMENT
}

fn build() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(cel::extensions::strings)?;
    cel::add_member_overload!(env, fn find: (CelString<'_>, CelString<'_>) -> Result<CelString<'_>>)?;
    cel::add_member_overload!(env, fn find_all: (CelString<'_>, CelString<'_>) -> Result<CelList<'_>>)?;
    cel::add_member_overload!(env, fn find_all_limited: (CelString<'_>, CelString<'_>, CelInt) -> Result<CelList<'_>>,
        name = "findAll", id = "string.findAll(string, int)")?;
    cel::add_overload!(env, fn is_url: (CelString<'_>) -> CelBool, name = "isURL")?;
    cel::add_overload!(env, fn is_quantity: (CelString<'_>) -> CelBool, name = "isQuantity")?;
    cel::add_overload!(env, fn is_ip: (CelString<'_>) -> CelBool, name = "isIP")?;
    cel::add_overload!(env, fn is_cidr: (CelString<'_>) -> CelBool, name = "isCIDR")?;
    env.add_member_overload("isSorted", "list.isSorted()", LIST_TYPE, vec![], is_sorted)?;
    env.add_member_overload("sum", "list.sum()", LIST_TYPE, vec![], sum)?;
    env.add_member_overload("min", "list.min()", LIST_TYPE, vec![], least)?;
    env.add_member_overload("max", "list.max()", LIST_TYPE, vec![], greatest)?;
    env.add_member_overload("indexOf", "list.indexOf(dyn)", LIST_TYPE, vec![DYN_TYPE], first_index)?;
    env.add_member_overload(
        "lastIndexOf",
        "list.lastIndexOf(dyn)",
        LIST_TYPE,
        vec![DYN_TYPE],
        last_index,
    )?;
    Ok(env)
}

fn pattern_of(function: &str, pattern: &str) -> Result<Pattern, ExecutionError> {
    Pattern::new(pattern).map_err(|e| ExecutionError::function_error(function, format!("invalid regex: {e}")))
}

/// The first match, or the empty string.
fn find(this: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelString<'static>, ExecutionError> {
    let found = pattern_of("find", pattern.inner())?
        .regex()
        .find(this.inner())
        .map_or("", |m| m.as_str())
        .to_owned();
    Ok(CelString::from(found))
}

fn find_all(this: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelList<'static>, ExecutionError> {
    matches_of(this, pattern, usize::MAX)
}

fn find_all_limited(
    this: &CelString<'_>,
    pattern: &CelString<'_>,
    limit: &CelInt,
) -> Result<CelList<'static>, ExecutionError> {
    // A negative limit means all, as in Go.
    matches_of(this, pattern, usize::try_from(*limit.inner()).unwrap_or(usize::MAX))
}

fn matches_of(this: &CelString<'_>, pattern: &CelString<'_>, limit: usize) -> Result<CelList<'static>, ExecutionError> {
    let pattern = pattern_of("findAll", pattern.inner())?;
    let found: Vec<Box<dyn Val>> = pattern
        .regex()
        .find_iter(this.inner())
        .take(limit)
        .map(|m| Box::new(CelString::from(m.as_str().to_owned())) as Box<dyn Val>)
        .collect();
    Ok(CelList::from(found))
}

fn is_url(text: &CelString<'_>) -> CelBool {
    CelBool::from(url::Url::parse(text.inner()).is_ok() || text.inner().starts_with('/'))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    CelBool::from(super::format::accepts_quantity(text.inner()))
}

fn is_ip(text: &CelString<'_>) -> CelBool {
    CelBool::from(text.inner().parse::<std::net::IpAddr>().is_ok())
}

fn is_cidr(text: &CelString<'_>) -> CelBool {
    CelBool::from(super::format::accepts("cidr", text.inner()))
}

type Args<'b, 'v> = Vec<CowVal<'b, 'v>>;
type Answer<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

fn elements(args: &Args<'_, '_>, function: &str) -> Result<Vec<Value>, ExecutionError> {
    let list = args
        .first()
        .ok_or_else(|| ExecutionError::invalid_argument_count(1, 0))?;
    match Value::try_from(list.as_ref())? {
        Value::List(items) => Ok(items.to_vec()),
        other => Err(ExecutionError::function_error(
            function,
            format!("{other:?} is not a list"),
        )),
    }
}

fn answer<'b, 'v>(value: Value) -> Answer<'b, 'v> {
    let boxed: Box<dyn Val> = value
        .try_into()
        .map_err(|_| ExecutionError::InternalError("value has no CEL form".to_owned()))?;
    Ok(CowVal::Owned(boxed))
}

fn is_sorted<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let items = elements(&args, "isSorted")?;
    answer(Value::Bool(items.is_sorted()))
}

fn sum<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let mut items = elements(&args, "sum")?.into_iter();
    let Some(first) = items.next() else {
        return answer(Value::Int(0));
    };
    answer(items.try_fold(first, |total, item| total + item)?)
}

fn least<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let items = elements(&args, "min")?;
    let smallest = items.into_iter().reduce(|a, b| if b < a { b } else { a });
    answer(smallest.ok_or_else(|| ExecutionError::function_error("min", "min called on empty list"))?)
}

fn greatest<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let items = elements(&args, "max")?;
    let largest = items.into_iter().reduce(|a, b| if b > a { b } else { a });
    answer(largest.ok_or_else(|| ExecutionError::function_error("max", "max called on empty list"))?)
}

fn first_index<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    index_with(&args, "indexOf", |items, wanted| items.iter().position(|i| i == wanted))
}

fn last_index<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    index_with(&args, "lastIndexOf", |items, wanted| {
        items.iter().rposition(|i| i == wanted)
    })
}

fn index_with<'b, 'v>(
    args: &Args<'b, 'v>,
    function: &str,
    position: impl Fn(&[Value], &Value) -> Option<usize>,
) -> Answer<'b, 'v> {
    let items = elements(args, function)?;
    let wanted = args
        .get(1)
        .ok_or_else(|| ExecutionError::invalid_argument_count(2, args.len()))?;
    let wanted = Value::try_from(wanted.as_ref())?;
    let index = position(&items, &wanted)
        .and_then(|i| i64::try_from(i).ok())
        .unwrap_or(-1);
    answer(Value::Int(index))
}
