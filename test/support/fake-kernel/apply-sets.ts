import {
  NFT_DATA_VALUE_MAXLEN,
  NFT_DATA_VERDICT,
  NFT_SET_ANONYMOUS,
  NFT_SET_MAP,
  NFT_SET_TIMEOUT,
  NFTA_SET_ELEM_LIST_ELEMENTS,
} from '../../../src/kernel/nft/constants.ts'
import { SET, type SET_ELEMENT, SET_ELEMENTS } from '../../../src/kernel/nft/schema.ts'
import { NLM_F_CREATE, NLM_F_EXCL } from '../../../src/netlink/constants.ts'
import type { ValuesOf } from '../../../src/netlink/schema.ts'
import { attributesOf, type Call, itemOffset, nameIn, offsetOf, refuse, tableOf } from './call.ts'
import { type FakeElement, type FakeSet, type FakeTable, setReferences } from './objects.ts'

/** Sets and their elements, as net/netfilter/nf_tables_api.c treats them; every errno here was seen on Linux 6.18. */

export function newSet(call: Call): void {
  const { journal, message } = call
  const values = attributesOf(call, SET)
  const table = tableOf(call, values.table)
  const name = nameIn(call, values.name, SET.fields.name[0])
  const declared = declarationOf(values)
  // The kernel takes the same declaration again, and another size: this project makes such a set anew.
  if (table.sets.has(name)) refuse('EEXIST', offsetOf(call, SET.fields.name[0]))
  if ((message.flags & NLM_F_CREATE) === 0) refuse('ENOENT')
  journal.put(table.sets, name, { ...declared, name, handle: table.handles.next(), elements: new Map() })
}

type Declaration = Omit<FakeSet, 'name' | 'handle' | 'elements'>

function declarationOf(values: ValuesOf<typeof SET>): Declaration {
  const { flags = 0, keyType = 0, keyLength, dataType, dataLength, timeout, userdata, expression } = values
  if (expression !== undefined && expression.tag !== 'counter') refuse('EOPNOTSUPP')
  // Anonymous sets live and die with a rule, and this project makes none.
  if (values.id === undefined || (flags & NFT_SET_ANONYMOUS) !== 0) refuse('EINVAL')
  if (keyLength === undefined || keyLength === 0 || keyLength > NFT_DATA_VALUE_MAXLEN) refuse('EINVAL')
  const isMap = (flags & NFT_SET_MAP) !== 0
  if (isMap !== (dataType !== undefined)) refuse('EINVAL')
  const isVerdictMap = dataType === NFT_DATA_VERDICT
  if (isMap && !isVerdictMap && (dataLength === undefined || dataLength > NFT_DATA_VALUE_MAXLEN))
    refuse('EINVAL')
  if (timeout !== undefined && (flags & NFT_SET_TIMEOUT) === 0) refuse('EINVAL')
  const size = values.desc?.size ?? 0
  return {
    flags,
    keyType,
    keyLength,
    dataType,
    dataLength,
    timeoutMs: timeout ?? 0n,
    userdata,
    expression,
    size,
  }
}

export function deleteSet(call: Call): void {
  const { table: tableName, name } = attributesOf(call, SET)
  const table = tableOf(call, tableName)
  const set =
    table.sets.get(nameIn(call, name, SET.fields.name[0])) ??
    refuse('ENOENT', offsetOf(call, SET.fields.name[0]))
  for (const reference of setReferences(table)) {
    if (reference === set.name) refuse('EBUSY', offsetOf(call, SET.fields.name[0]))
  }
  call.journal.remove(table.sets, set.name)
}

export function newElements(call: Call): void {
  const { table, set, elements } = elementsOf(call)
  for (const [i, values] of elements.entries()) {
    blaming(call, i, () => addElement(call, { table, set }, values))
  }
}

/** Without a list, all of them. */
export function deleteElements(call: Call): void {
  const { set, elements, all } = elementsOf(call)
  if (all) for (const key of [...set.elements.keys()]) call.journal.remove(set.elements, key)
  for (const [i, values] of elements.entries()) {
    blaming(call, i, () => {
      const key = keyOf(set, values)
      if (living(call, set, key) === undefined) refuse('ENOENT')
      call.journal.remove(set.elements, key)
    })
  }
}

interface Elements {
  readonly table: FakeTable
  readonly set: FakeSet
  readonly elements: readonly ValuesOf<typeof SET_ELEMENT>[]
  readonly all: boolean
}

function elementsOf(call: Call): Elements {
  const values = attributesOf(call, SET_ELEMENTS)
  const table = tableOf(call, values.table)
  const name = nameIn(call, values.set, SET_ELEMENTS.fields.set[0])
  const set = table.sets.get(name) ?? refuse('ENOENT', offsetOf(call, SET_ELEMENTS.fields.set[0]))
  return { table, set, elements: values.elements ?? [], all: values.elements === undefined }
}

/** A refusal of one element points at it; the first one ends the message. */
function blaming(call: Call, index: number, run: () => void): void {
  call.journal.blame = () => itemOffset(call, NFTA_SET_ELEM_LIST_ELEMENTS, index)
  run()
  call.journal.blame = undefined
}

function keyOf(set: FakeSet, { key }: ValuesOf<typeof SET_ELEMENT>): string {
  const value = key?.value ?? refuse('EINVAL')
  if (value.length !== set.keyLength) refuse('EINVAL')
  return value
}

function addElement(
  call: Call,
  { table, set }: Pick<Elements, 'table' | 'set'>,
  values: ValuesOf<typeof SET_ELEMENT>,
): void {
  const key = keyOf(set, values)
  checkData(set, table, values.data)
  const element: FakeElement = {
    key,
    data: values.data,
    userdata: values.userdata,
    ...lifetime(call, set, values),
  }
  const existing = living(call, set, key)
  if (existing !== undefined) {
    if ((call.message.flags & NLM_F_EXCL) !== 0 || !sameData(existing.data, values.data)) refuse('EEXIST')
    // What is there stays as it is, comment included, but for the time it has left.
    if (values.expiration !== undefined || values.timeout !== undefined) {
      call.journal.put(set.elements, key, { ...existing, ...lifetime(call, set, values) })
    }
    return
  }
  if (set.size > 0 && set.elements.size >= set.size) refuse('ENFILE')
  call.journal.put(set.elements, key, element)
  if (values.data?.verdict?.chain !== undefined) call.journal.toValidate.add(table)
}

/** The element, unless its time is over. */
function living(call: Call, set: FakeSet, key: string): FakeElement | undefined {
  const element = set.elements.get(key)
  return element?.expiresAtMs !== undefined && element.expiresAtMs <= call.space.nowMs() ? undefined : element
}

function lifetime(
  call: Call,
  set: FakeSet,
  { timeout, expiration }: ValuesOf<typeof SET_ELEMENT>,
): Pick<FakeElement, 'timeoutMs' | 'expiresAtMs'> {
  const isTimed = (set.flags & NFT_SET_TIMEOUT) !== 0
  if (!isTimed && (timeout !== undefined || expiration !== undefined)) refuse('EINVAL')
  const whole = timeout ?? set.timeoutMs
  if (expiration !== undefined && expiration > whole) refuse('ERANGE')
  const left = expiration ?? whole
  return { timeoutMs: timeout, expiresAtMs: left === 0n ? undefined : call.space.nowMs() + Number(left) }
}

function checkData(set: FakeSet, table: FakeTable, data: FakeElement['data']): void {
  const isMap = (set.flags & NFT_SET_MAP) !== 0
  if (isMap !== (data !== undefined)) refuse('EINVAL')
  if (data === undefined) return
  if (set.dataType !== NFT_DATA_VERDICT) {
    if (data.value?.length !== set.dataLength) refuse('EINVAL')
    return
  }
  if (data.verdict?.code === undefined) refuse('EINVAL')
  const { chain } = data.verdict
  if (chain === undefined) return
  const target = table.chains.get(chain) ?? refuse('ENOENT')
  if (target.hook !== undefined) refuse('EOPNOTSUPP')
}

function sameData(a: FakeElement['data'], b: FakeElement['data']): boolean {
  return (
    a?.value === b?.value && a?.verdict?.code === b?.verdict?.code && a?.verdict?.chain === b?.verdict?.chain
  )
}
