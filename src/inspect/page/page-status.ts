import { fieldOf, listAt, numberAt, textAt } from '../../base/plain-data.ts'
import { count } from '../../base/text.ts'
import type { Fact, Problem, StatusDocument } from '../status/status-document.ts'
import type { PageService, Severity } from './page-services.ts'

/** Services that the document names for each kind of problem; the page has a list of all. */
const NAMED_MAX = 3

const KINDS: readonly ServiceKind[] = [
  { severity: 'refused', kind: 'services-refused', level: 'error', text: 'refused' },
  { severity: 'unanswered', kind: 'unanswered', level: 'error', text: 'not answering' },
  { severity: 'idle', kind: 'services-idle', level: 'warning', text: 'without a usable endpoint' },
]

interface ServiceKind extends Problem {
  readonly severity: Severity
}

/** Answers "is this node well?" from the daemon's page /status and the Services with their problems. Pure. */
export function statusDocument(status: unknown, services: readonly PageService[]): StatusDocument {
  const problems = [...daemonProblems(status), ...KINDS.flatMap(kind => serviceProblems(services, kind))]
  const errors = problems.filter(({ level }) => level === 'error').length
  const served = numberAt(status, 'synced') !== undefined
  const verdict = !served ? 'down' : errors > 0 ? 'impaired' : 'well'
  return { verdict, sentence: sentenceOf(verdict, problems), problems, facts: factsOf(status, services) }
}

function sentenceOf(verdict: StatusDocument['verdict'], problems: readonly Problem[]): string {
  const [first] = problems
  if (verdict === 'down') return 'This node serves nothing yet: the daemon has committed no rules.'
  if (first === undefined) return 'This node is well: it serves everything as configured.'
  const more = problems.length === 1 ? '' : `, and ${count(problems.length - 1, 'more problem')}`
  return verdict === 'well'
    ? `This node is well, with ${count(problems.length, 'warning')}.`
    : `This node is impaired: ${first.text}${more}.`
}

function daemonProblems(status: unknown): readonly Problem[] {
  const source = fieldOf(status, 'source')
  const [missing, trouble, error] = [
    listAt(source, 'missing').map(String),
    textAt(source, 'trouble'),
    textAt(status, 'error'),
  ]
  const [snapshot = 0, synced = snapshot] = [numberAt(status, 'snapshot'), numberAt(status, 'synced')]
  const found = (level: Problem['level'], kind: string, text: string): Problem => ({ level, kind, text })
  return [
    ...(error === '' ? [] : [found('error', 'kernel', `the last commit failed: ${error}`)]),
    ...(missing.length === 0 ? [] : [found('error', 'source', `the source lacks ${missing.join(', ')}`)]),
    ...(trouble === '' ? [] : [found('error', 'source', `the source has a problem: ${trouble}`)]),
    ...(fieldOf(source, 'stale') === true
      ? [found('warning', 'source', 'the objects are those of the last run')]
      : []),
    // A commit takes a moment: one version behind is the usual state of a busy node.
    ...(snapshot - synced > 1
      ? [found('warning', 'kernel', `the kernel is ${snapshot - synced} versions behind`)]
      : []),
  ]
}

function serviceProblems(
  services: readonly PageService[],
  { severity, kind, level, text }: ServiceKind,
): readonly Problem[] {
  const its = services.filter(each => each.severity === severity)
  const named = its
    .slice(0, NAMED_MAX)
    .map(({ service, problem }) => ({ level, kind, service, text: `${service}: ${problem}` }))
  const more = its.length - named.length
  return more <= 0 ? named : [...named, { level, kind, text: `${count(more, 'more Service')} ${text}` }]
}

function factsOf(status: unknown, services: readonly PageService[]): readonly Fact[] {
  const [repairs, source] = [fieldOf(status, 'repairs'), fieldOf(status, 'source')]
  const [passes, silentMs] = [numberAt(repairs, 'passes') ?? 0, numberAt(source, 'silentMs')]
  const [snapshot, synced] = [numberAt(status, 'snapshot') ?? null, numberAt(status, 'synced') ?? null]
  const refused = services.filter(({ severity }) => severity === 'refused').length
  const idle = services.filter(({ severity }) => severity === 'idle').length
  const objects = numberAt(repairs, 'objects') ?? 0
  return [
    {
      name: 'services',
      text: `${count(services.length, 'Service')}, ${refused} refused, ${idle} without an endpoint`,
      values: { services: services.length, refused, idle },
    },
    {
      name: 'kernel',
      text: synced === snapshot ? 'holds everything' : `holds ${synced ?? 'nothing'} of ${snapshot}`,
      values: { snapshot, synced },
    },
    {
      name: 'source',
      text: silentMs === undefined ? 'no messages' : `last message ${Math.round(silentMs / 1000)} s ago`,
      values: { silentMs: silentMs ?? null },
    },
    {
      name: 'repairs',
      text: passes === 0 ? 'none' : `${count(passes, 'repair')} of ${count(objects, 'object')}`,
      values: { passes, objects, lastAt: textAt(repairs, 'lastAt') },
    },
  ]
}
