import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import { badRequest } from './status.ts'
import { metadataOf } from './store.ts'

export type Selector = (object: ApiObject) => boolean

/** Both selectors of a request. Throws ApiFailure 400 for what the server could not read either. */
export function selectorOf(labels: string, fields: string): Selector {
  const all = [...labelRequirements(labels), ...fieldRequirements(fields)]
  return object => all.every(matches => matches(object))
}

function labelRequirements(text: string): readonly Selector[] {
  const parts = text.trim() === '' ? [] : text.split(',')
  return parts.map(part => {
    const matches = labelRequirement(part.trim())
    return object => matches(metadataOf(object).labels ?? {})
  })
}

type Labels = { readonly [key: string]: string }

/** Presence, absence and equality; clients of ours ask for no sets. */
function labelRequirement(part: string): (labels: Labels) => boolean {
  const comparison = /^([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)$/.exec(part)
  if (comparison !== null) {
    const [, key = '', operator, value] = comparison
    return operator === '!=' ? labels => labels[key] !== value : labels => labels[key] === value
  }
  const presence = /^(!?)\s*([\w./-]+)$/.exec(part)
  if (presence === null) throw badRequest(`unable to parse the label requirement "${part}"`)
  const [, not, key = ''] = presence
  return not === '!' ? labels => labels[key] === undefined : labels => labels[key] !== undefined
}

const FIELDS: Readonly<Record<string, (object: ApiObject) => unknown>> = {
  'metadata.name': object => metadataOf(object).name,
  'spec.clusterIP': object => specOf(object).clusterIP ?? '',
}

function specOf(object: ApiObject): { readonly [field: string]: unknown } {
  return typeof object.spec === 'object' && object.spec !== null ? { ...object.spec } : {}
}

function fieldRequirements(text: string): readonly Selector[] {
  const parts = text.trim() === '' ? [] : text.split(',')
  return parts.map(part => {
    const match = /^([\w.]+)\s*(==|=|!=)\s*(.*)$/.exec(part.trim())
    const [, field = '', operator, value] = match ?? []
    const read = FIELDS[field]
    if (read === undefined) throw badRequest(`field label not supported: "${part}"`)
    return object => (read(object) === value) === (operator !== '!=')
  })
}
