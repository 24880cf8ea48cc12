//! The Apache CloudStack provider.
