//! The C ABI as C and C++ programs see it.

mod examples;
mod interface;
mod layout;
mod own;
mod program;
