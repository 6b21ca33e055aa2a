//! The contract of back ends. Each function in `suite` gets a place where a database can be opened several times, and knows nothing else of
//! it; the macro runs all of them against each back end. Another back end is added by one more `BackEnd` and one more line below.

mod agree;
mod model;
mod place;
mod suite;

macro_rules! conformance {
    ($($back_end:ident: $place:expr;)*) => { $(
        mod $back_end {
            use crate::place::{BackEnd, Place};
            use crate::suite::*;

            conformance!(@tests $place;
                transactions::a_dropped_transaction_has_no_effect,
                transactions::a_reader_sees_one_state,
                transactions::a_reader_does_not_wait_for_a_writer,
                transactions::a_second_writer_waits_and_then_gets_a_fault,
                transactions::a_handle_has_one_transaction_at_a_time,
                transactions::a_read_transaction_cannot_write,
                transactions::no_update_is_lost,
                transactions::an_update_from_an_old_version_is_stale,
                transactions::relaxed_commits_are_seen_at_once_and_synced_once,
                transactions::commits_survive_a_killed_process,
                records::ids_and_names_are_unique_in_their_kind,
                records::a_refused_row_leaves_the_transaction_usable,
                records::odd_ids_come_back_in_byte_order,
                records::prefixes_and_limits_bound_a_list,
                records::scopes_are_matched_whole_or_as_paths,
                records::records_without_an_end_are_open,
                records::times_are_sorted_and_ties_broken_by_id,
                records::references_are_counted_by_text,
                records::keys_expire,
                journal::an_entry_follows_upon_the_last,
                journal::entries_are_selected_by_each_field,
                journal::old_entries_are_deleted_and_numbers_go_on,
                journal::the_chain_is_continuous_under_concurrency,
                journal::a_rolled_back_entry_leaves_no_gap,
                journal::segments_are_cut_off_and_verified,
                journal::a_copy_holds_one_moment,
            );
        }
    )* };
    (@tests $place:expr; $($module:ident::$name:ident,)*) => { $(
        #[test]
        fn $name() {
            $module::$name(&Place::new($place));
        }
    )* };
}

conformance! {
    sqlite: BackEnd::Sqlite;
    memory: BackEnd::Memory;
}
