//! Requests that wait until all is known of their shard.

use std::time::Duration;

use hoplite_words::peer::{DirectoryAnswer, DirectoryRequest, InventoryPage, Scope};

use crate::node::{Node, ME};
use crate::recovery::{id_moving, take_asked};
use crate::requests::{announce_unjudged, ask, edition, put_report, SIZE};

const MOMENT: Duration = Duration::from_millis(50);

#[test]
fn what_waited_is_served_in_order_of_arrival_and_only_the_newest_word_on_a_matter() {
    let mut at = Node::among(5, 8 << 20);
    let id = id_moving(&mut at, 3, ME, 5);
    at.members_answer = false;
    at.crash(3);
    at.wait(MOMENT);
    let locate = |token| DirectoryRequest::Locate { token };
    // In the order of neither nodes nor tokens.
    for (from, request) in [
        (5, locate(9)),
        (2, locate(8)),
        (2, locate(6)),
        (2, ask(1)),
        (5, locate(7)),
        (4, ask(1)),
        (5, locate(9)),
        (2, locate(8)),
        (4, ask(2)),
        (4, DirectoryRequest::Unask { ask: 1 }),
        (2, DirectoryRequest::Unask { ask: 1 }),
    ] {
        at.request(from, id, request);
    }
    assert_eq!(at.gauge("held requests"), 5);
    at.request(5, id, announce_unjudged(5, put_report(7, edition(5), SIZE)));
    let newer = put_report(9, edition(5), SIZE);
    at.request(5, id, announce_unjudged(5, newer));
    at.request(5, id, announce_unjudged(5, put_report(8, edition(5), SIZE)));
    assert_eq!(at.gauge("held requests"), 6);
    let asked: Vec<_> = take_asked(&mut at).into_iter().filter(|asked| asked.scope == Scope::All).collect();
    for asked in asked {
        at.hear(asked.of, asked.answer(0, InventoryPage::default(), None));
    }
    at.wait(MOMENT);
    let told = at.take_answers(id);
    let located = told.iter().filter_map(|(to, answer)| match answer {
        DirectoryAnswer::Located { token, .. } => Some((*to, *token)),
        _ => None,
    });
    assert_eq!(located.collect::<Vec<_>>(), [(2, 6), (5, 7), (5, 9), (2, 8)]);
    let lent = told.iter().filter(|(_, answer)| matches!(answer, DirectoryAnswer::Lend { .. }));
    assert_eq!(lent.map(|(to, _)| *to).collect::<Vec<_>>(), [4]);
    assert_eq!(at.gauge("held requests"), 0);
    at.assert_consistent();
}
