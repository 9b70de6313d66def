//! Statements that are sent one behind the other, without waiting for each answer: many of them take a round trip or two.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

/// Statements that may be under way together, and the bytes of what they carry.
const TOGETHER: usize = 256;
const TOGETHER_BYTES: usize = 1 << 20;

/// Cuts `items`, in their order, into what may be sent together: each so many bytes.
pub(super) fn together<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut left = items;
    std::iter::from_fn(move || {
        let mut sum = 0_usize;
        let fits = left.iter().take(TOGETHER).take_while(|item| {
            let is_first = sum == 0;
            sum = sum.saturating_add(bytes(item).max(1));
            is_first || sum <= TOGETHER_BYTES
        });
        let (next, rest) = left.split_at_checked(fits.count())?;
        left = rest;
        (!next.is_empty()).then_some(next)
    })
}

/// Sends all of them, in their order, and waits for all answers. Each is to send what it has when it is polled first, and
/// nothing later.
///
/// # Errors
/// Of the first that failed: in a transaction those behind it came to nothing.
pub(super) async fn pipelined<F, E>(statements: impl Iterator<Item = F>) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let mut open: VecDeque<_> = statements.map(Box::pin).collect();
    let mut sent = VecDeque::with_capacity(open.len());
    poll_fn(|context| {
        while let Some(mut next) = open.pop_front() {
            match next.as_mut().poll(context) {
                Poll::Pending => sent.push_back(next),
                Poll::Ready(answer) => answer?,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    // The server answers in their order.
    for answer in sent {
        answer.await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn what_is_sent_together_is_bounded_and_in_order() {
        let lengths = |items: &[usize]| -> Vec<usize> {
            let cut: Vec<_> = together(items, |bytes| *bytes).collect();
            assert_eq!(cut.concat(), items);
            cut.iter().map(|items| items.len()).collect()
        };
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[0; TOGETHER * 2 + 1]), [TOGETHER, TOGETHER, 1]);
        let (half, more) = (TOGETHER_BYTES / 2, TOGETHER_BYTES * 2);
        assert_eq!(lengths(&[half, half, 1]), [2, 1]);
        assert_eq!(lengths(&[more, more, half, usize::MAX, 0]), [1, 1, 1, 1, 1], "one goes, however large");
    }

    /// Is answered when it is polled a second time.
    async fn asked(number: usize, sent: &RefCell<Vec<usize>>, answer: Result<(), usize>) -> Result<(), usize> {
        sent.borrow_mut().push(number);
        tokio::task::yield_now().await;
        sent.borrow_mut().push(number + 10);
        answer
    }

    #[tokio::test]
    async fn all_are_sent_in_order_before_the_first_answer_and_the_first_error_counts() {
        let sent = RefCell::default();
        assert_eq!(pipelined((0..3).map(|number| asked(number, &sent, Ok(())))).await, Ok(()));
        assert_eq!(sent.take(), [0, 1, 2, 10, 11, 12]);
        let answer = |number| if number == 0 { Ok(()) } else { Err(number) };
        assert_eq!(pipelined((0..3).map(|number| asked(number, &sent, answer(number)))).await, Err(1));
        assert_eq!(pipelined((0..0).map(|number| asked(number, &sent, Ok(())))).await, Ok(()));
    }
}
