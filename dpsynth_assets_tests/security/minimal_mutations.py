"""Every mutation of Dagster's GraphQL schema, with the least arguments that it accepts."""

from graphql import (
    GraphQLEnumType,
    GraphQLInputObjectType,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLUnionType,
    get_named_type,
    print_ast,
)
from graphql.language import ast

SCALARS = {"Int": "1", "Float": "1.0", "Boolean": "true"}


def mutations(schema):
    """Queries by name of the mutation."""
    fields = schema.mutation_type.fields
    return {name: _query(name, field) for name, field in sorted(fields.items())}


def _query(name, field):
    given = [f"{n}: {_literal(a.type)}" for n, a in field.args.items() if _is_required(a)]
    arguments = f"({', '.join(given)})" if given else ""
    kind = get_named_type(field.type)
    chosen = isinstance(kind, GraphQLObjectType | GraphQLUnionType)
    return f"mutation {{ {name}{arguments}{' { __typename }' if chosen else ''} }}"


def _is_required(argument):
    return isinstance(argument.type, GraphQLNonNull)


def _literal(kind):
    if isinstance(kind, GraphQLNonNull):
        return _literal(kind.of_type)
    if isinstance(kind, GraphQLList):
        return f"[{_literal(kind.of_type)}]"
    if isinstance(kind, GraphQLEnumType):
        return print_ast(ast.EnumValueNode(value=next(iter(kind.values))))
    if isinstance(kind, GraphQLInputObjectType):
        given = [f"{n}: {_literal(f.type)}" for n, f in kind.fields.items() if _is_required(f)]
        return f"{{{', '.join(given)}}}"
    return SCALARS.get(kind.name, '"x"')
