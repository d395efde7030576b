import { readFileSync } from 'node:fs'

export interface DocumentedAttribute {
  /** Such as NLA_U32. */
  readonly type: string
  /** The enum of the attributes inside a nest, such as nft_hook_attributes. */
  readonly of: string | undefined
}

export interface DocumentedHeader {
  readonly attributes: ReadonlyMap<string, DocumentedAttribute>
  /** The names of the members of each enum. */
  readonly enums: ReadonlyMap<string, readonly string[]>
}

/** Reads the types that the comments of a kernel header give to attributes: `@NAME: text (NLA_NESTED: enum)`. */
export function readDocumentedHeader(header: string): DocumentedHeader {
  const text = readFileSync(`/usr/include/${header}`, 'utf8')
  const attributes = [...text.matchAll(/^ \* @(\w+):[^@]*?\((NLA_\w+)(?:: (?:enum )?(\w+))?\)/gm)]
  const enums = [...text.matchAll(/^enum (\w+) \{([^}]*)\}/gm)]
  return {
    attributes: new Map(attributes.map(([, name = '', type = '', of]) => [name, { type, of }])),
    enums: new Map(enums.map(([, name = '', members = '']) => [name, members.match(/\b[A-Z]\w+/g) ?? []])),
  }
}
