import { count } from '../../base/text.ts'
import { factsOf } from './facts.ts'
import { problemsOf } from './problems.ts'
import type { Problem, StatusDocument } from './status-document.ts'
import type { StatusFacts } from './status-facts.ts'

/** Judges a node by its facts. Pure. */
export function statusOf(facts: StatusFacts): StatusDocument {
  const problems = problemsOf(facts)
  const verdict = verdictOf(facts, problems)
  return { verdict, sentence: sentenceOf(facts, verdict, problems), problems, facts: factsOf(facts) }
}

type Verdict = StatusDocument['verdict']

function verdictOf({ daemon, unread }: StatusFacts, problems: readonly Problem[]): Verdict {
  if (daemon.kind === 'absent' || (daemon.kind === 'answers' && daemon.synced === undefined)) return 'down'
  if (problems.length > 0) return 'impaired'
  return unread.length === 0 ? 'well' : 'unknown'
}

function sentenceOf(facts: StatusFacts, verdict: Verdict, problems: readonly Problem[]): string {
  const { daemon, rules, unread } = facts
  if (daemon.kind !== 'answers') return absenceText(daemon.kind, rules?.modes)
  if (verdict === 'down') return 'the kprobe daemon of this node has programmed no Service yet'
  const served = `kprobe serves ${count(daemon.services ?? 0, 'Service')} on this node`
  if (verdict === 'well') return `${served} as configured`
  const parts = unread.length === 0 ? '' : `not read: ${unread.map(({ part }) => part).join(', ')}`
  if (verdict === 'unknown') return `${served}; the state of this node is unknown; ${parts}`
  return `${served}, with ${count(problems.length, 'problem')}${parts === '' ? '' : `; ${parts}`}`
}

function absenceText(kind: 'absent' | 'silent', modes: readonly string[] | undefined): string {
  if (kind === 'silent') return 'the kprobe daemon of this node does not answer'
  return modes?.length === 0
    ? 'no kprobe daemon runs on this node, and no Service is served'
    : 'no kprobe daemon runs on this node: its rules stay, and do not follow changes'
}
