//! The library that programs carry: it says hello to the pager when they start, and holds the evictor that moves
//! pages out.
//!
//! It lives in other people's programs, so it brings nothing and touches nothing: no standard library, no libc, no
//! symbols to see or to bind, no thread-local storage, no variables, no descriptor that stays open, and no memory
//! from the program's allocator. Everything it knows later stands in a page of its own, in the head and in its seat.
//! Without the environment variable of [`protocol::ADDRESS_VARIABLE`] it does nothing at all.
//!
//! - [`start`]: what runs before the program's first instruction.
//! - [`evictor`]: the thread that carries out batches, and how it is started.
//! - [`batch`]: what it does with one.
//! - [`forks`]: forks that wait for the pager, where the kernel does not tell it of them.
//! - `whole_fork`: no signal interrupts such forks; in the library for such programs only, which alone has a symbol
//!   to see (`_Fork`), binds libc's, and has variables.
//! - [`calls`]: system calls. [`socket`]: the greeting. [`memory`]: copying.

#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("programs can be paged on Linux on x86_64 only: this library makes system calls of that machine");

mod batch;
mod calls;
mod evictor;
mod forks;
mod memory;
// Each side uses its half of what is agreed on.
#[allow(dead_code, unused_imports)]
#[path = "../protocol/mod.rs"]
mod protocol;
mod socket;
mod start;
#[cfg(tells_forks)]
mod whole_fork;

/// Run by the dynamic loader before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(usize, usize, usize) = start::start;

/// An assertion of this library failed: end the program, as nothing in it can be trusted to be paged rightly.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    start::refuse(b"an assertion in its library failed", 0)
}
