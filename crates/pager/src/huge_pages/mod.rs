//! Huge pages given back to programs.
//!
//! The kernel splits a huge page when one page of it leaves, and pages come back one by one. Where all pages of a block
//! of 2 MiB are there again, writable, the evictor can ask for a huge page in their place (`MADV_COLLAPSE`). The kernel
//! does that under the program's mapping lock and refuses it while a page is away, protected, or pinned, so no content
//! is lost whatever happens meanwhile; docs/decisions/elastic-blocks.md has what was tried.
//!
//! - [`eligible`]: where a program would have huge pages without the pager;
//! - [`blocks`]: which block is given back, and when;
//! - `crates/pager/src/process/huge_pages.rs` looks for blocks, `crates/pager/src/evict/huge_pages.rs` has them made.

pub mod blocks;
pub mod eligible;
