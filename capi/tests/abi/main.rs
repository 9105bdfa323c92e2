//! Tests of the C interface with C and C++ programs.

mod baseline;
mod examples;
mod extensions;
mod fork;
mod headers;
mod hip;
mod hip_page;
mod hip_tests;
mod host_programs;
mod installed;
mod interface;
mod layout;
mod messages;
mod privileges;
mod program;
mod programs;
mod random_calls;
mod related_calls;
mod sequences;
