//! The BizFly Cloud provider.
