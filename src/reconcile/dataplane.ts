import { finishInSlices, type Slicing, type Steps } from '../base/clock.ts'
import { assert, errorOf } from '../base/errors.ts'
import type { Family } from '../base/ip.ts'
import { compareTexts } from '../base/text.ts'
import type { FrontendTable } from '../model/frontend.ts'

declare const opaque: unique symbol

/**
 * A moment between two commits, as a plane counts them: by the generation of nf_tables, or with what it finds in other parts
 * of the kernel. Only the plane that made it knows which; others compare two of one plane.
 */
export interface Generation {
  readonly [opaque]: true
}

/** Makes a token of a plane's counter, which grows by one with each commit and starts over after 32 bits. */
export function generationOf(counter: number): Generation {
  assert(isGeneration(counter), `a counter: ${counter}`)
  return counter
}

/** Gives the plane its counter back. */
export function counterOf(generation: Generation): number {
  assert(typeof generation === 'number', 'a generation is made by generationOf')
  return generation
}

/** The number of commits from one moment to the other; negative if `to` is the earlier one. */
export function commitsBetween(from: Generation, to: Generation): number {
  return (counterOf(to) - counterOf(from)) | 0
}

/** The options of a commit with the plane's own counter. */
export function guardOf({ generation }: CommitOptions): { readonly generation?: number } {
  return generation === undefined ? {} : { generation: counterOf(generation) }
}

function isGeneration(value: unknown): value is Generation {
  return Number.isInteger(value)
}

/**
 * One way of putting a FrontendTable into a kernel. `State` is everything the plane keeps there, as an immutable value.
 * Everything but observe, commit and cleanup is pure.
 */
export interface Dataplane<State, P extends Plan<State> = Plan<State>> {
  /** The plane's name in logs, unique in a network namespace. */
  readonly name: string
  /** The state of a kernel in which nothing of ours exists. */
  readonly empty: State
  /** Computes the wanted state. `base` lends its numbering (ids, codes, sizes), so that equal things stay equal. */
  render(frontends: FrontendTable, options: RenderOptions<State>): Steps<State>
  /** Computes the plan that leads from one state to the other. */
  diff(from: State, to: State): Steps<P>
  observe(options?: ObserveOptions): Promise<Observation<State>>
  /** Writes one plan. Does not throw for the kernel's answers: they are in the Receipt. */
  commit(plan: P, options: CommitOptions): Promise<Receipt>
  /** Cheap to read. Changes with every program's commits to the kernel; our own commits report theirs in the Receipt. */
  generation(): Generation
  /**
   * Calls `changed` about every `everyMs` while `generation` is not the expected one, for less than it costs to call
   * `generation` as often. Undefined, or absent: this plane or its sockets cannot do so.
   */
  watchGeneration?(everyMs: number, changed: () => void): GenerationWatch | undefined
  /**
   * Subscribes to the commits of all programs on the node, until the result is called. It names the process behind each
   * commit, but taxes every writer while it lasts: for a while, after damage came back.
   */
  watchWriters(report: (commit: WriterCommit) => void): () => void
  /** Removes everything that is provably ours. */
  cleanup(): Promise<void>
}

/** Compares the plane's generation with the expected one; nothing is expected at first. */
export interface GenerationWatch {
  expect(generation: Generation): void
  stop(): void
}

/** One commit by any program, kprobe included. */
export interface WriterCommit {
  readonly generation: Generation
  readonly processId: number
  readonly processName: string
  /** Made by this plane. */
  readonly own: boolean
  /** It changed something of ours. */
  readonly touchesUs: boolean
}

export interface ObserveOptions {
  /** Reads for display: the next commit treats commits of other programs as if this read had not happened. */
  readonly aside?: boolean
}

export interface RenderOptions<State> {
  readonly base: State
  /** Services that the kernel refused, to be left out, and families whose objects stay as they are. */
  readonly without: ReadonlySet<string>
}

export interface CommitOptions {
  /** Refuse the commit (outcome 'stale') if the kernel has moved on from this generation. */
  readonly generation?: Generation
}

export interface Observation<State> {
  readonly state: State
  /** The generation at which all of it was true. */
  readonly generation: Generation
  /** Others never paused while it was read: it is true only if they left our objects alone. */
  readonly unsettled?: boolean
}

/** The difference between two states: printable, countable, and what commit sends. */
export interface Plan<State> {
  readonly empty: boolean
  /** Number of kernel objects created, changed or removed. */
  readonly changes: number
  /**
   * The state of the kernel once this plan is committed. It differs from the wanted state when something must wait for
   * a later commit (slots of a list that shrinks); diff(after, wanted) is then the rest.
   */
  readonly after: State
  /** True when `after` is the wanted state. */
  readonly complete: boolean
  /**
   * True when something is made anew in which packets leave state of their own (session affinity). Only the kernel
   * knows that state: the plan keeps what the `from` of its diff held, so `from` should be observed.
   */
  readonly rebuilds: boolean
  /** One line an object, grouped by Service. */
  describe(): Iterable<PlanLine>
}

export interface PlanLine {
  readonly verb: 'add' | 'change' | 'remove'
  /** Kernel object, in the words of the tool that lists it. */
  readonly object: string
  /** The Service it serves; undefined for what all Services share. */
  readonly service: string | undefined
}

/** The outcome of a commit. */
export interface Receipt {
  readonly outcome: /** The kernel holds plan.after. */
    | 'committed'
    /** The kernel is not what the plan was made for: for example, its generation moved on. */
    | 'stale'
    /** The kernel refused; see refusals. Nothing was changed, unless `partial` is set. */
    | 'refused'
    /** The outcome is unknown (a lost acknowledgement, a timeout): read the kernel back. */
    | 'unknown'
  /** Generation after the commit. */
  readonly generation: Generation
  /** True when another program committed between our last check and this commit. */
  readonly foreign: boolean
  readonly refusals: readonly KernelRefusal[]
  /** A part was carried out, though not all: read the kernel back. Absent where a commit is all or nothing. */
  readonly partial?: boolean
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
}

export interface KernelRefusal {
  /** Services among which the culprit is; one if the kernel named it, none if it belongs to no Service. */
  readonly services: readonly string[]
  /** The family of an object that all Services of that family share. */
  readonly family?: Family | undefined
  /** Operation, object and the kernel's own words. */
  readonly error: Error
}

export interface Difference {
  /** Grouped by Service. */
  readonly lines: readonly PlanLine[]
  /** False when even COMMITS_MAX commits would not do: the lines are those of the first ones. */
  readonly complete: boolean
}

/** Commits that a difference may take: what a packet may still reach goes one commit later. */
export const COMMITS_MAX = 8

/** Lists what `run` would change in the kernel. Reads the kernel and writes nothing; objects of `family` stay as they are. */
export async function differenceOf<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  table: FrontendTable,
  { family, ...slicing }: Slicing & { readonly family?: Family | undefined },
): Promise<Difference> {
  const { state } = await plane.observe({ aside: true })
  const without = new Set(family && [family])
  const wanted = await finishInSlices(plane.render(table, { base: state, without }), slicing)
  const lines: PlanLine[] = []
  let from = state
  let complete = false
  for (let commits = 1; commits <= COMMITS_MAX && !complete; commits++) {
    const plan = await finishInSlices(plane.diff(from, wanted), slicing)
    for (const line of plan.describe()) lines.push(line)
    complete = plan.complete
    from = plan.after
  }
  lines.sort((a, b) => compareTexts(a.service ?? '', b.service ?? ''))
  return { lines, complete }
}

export interface DryRunOptions<P> {
  /** Gets each plan instead of the kernel. */
  readonly planned: (plan: P) => void
  /** The kernel cannot be read, for example without the privilege: the plans start from nothing. */
  readonly unreadable: (error: Error) => void
}

/**
 * A plane that writes nothing. It reads the kernel once, so that the first plan is the true difference, and from then on
 * pretends that every plan was committed.
 */
export function dryRun<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  options: DryRunOptions<P>,
): Dataplane<State, P> {
  let pretended: State | undefined
  let commits = 0
  return {
    name: plane.name,
    empty: plane.empty,
    render: (frontends, render) => plane.render(frontends, render),
    diff: (from, to) => plane.diff(from, to),
    async observe(): Promise<Observation<State>> {
      pretended ??= await readOnce(plane, options)
      return { state: pretended, generation: generationOf(commits) }
    },
    commit(plan) {
      // It may throw: then nothing was committed.
      options.planned(plan)
      pretended = plan.after
      commits++
      return Promise.resolve({
        outcome: 'committed',
        generation: generationOf(commits),
        foreign: false,
        refusals: [],
        bytes: 0,
        messages: 0,
        durationMs: 0,
      })
    },
    generation: () => generationOf(commits),
    watchWriters: () => () => undefined,
    cleanup: () => Promise.resolve(),
  }
}

async function readOnce<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  options: DryRunOptions<P>,
): Promise<State> {
  try {
    return (await plane.observe()).state
  } catch (error) {
    options.unreadable(errorOf(error))
    return plane.empty
  }
}
